"""Where compiled kernels are kept, so that only the first start on a machine pays for compiling them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import numba
import platformdirs


def use_compile_cache(base: Path | None = None) -> Path:
    """Make Numba keep what it compiles from now on in a folder that belongs to these very sources.

    Numba notices when the file that holds a cached function changes, but not when a helper imported from
    another file does: hence a folder named by the digest of them all. The package itself may be read-only.

    Args:
        base: None: `NUMBA_CACHE_DIR` where set, else the user's cache folder, or the folder for temporary
            files where that cannot be written.

    Returns: the folder.
    """
    digest = digest_of_sources()
    if base is None:
        current = Path(numba.config.CACHE_DIR)
        if current.name == digest:
            return current
        base = current if numba.config.CACHE_DIR else _default_base()
    folder = base / digest
    numba.config.CACHE_DIR = str(folder)
    return folder


def _default_base() -> Path:
    preferred = platformdirs.user_cache_path("pageport") / "numba"
    try:
        preferred.mkdir(parents=True, exist_ok=True)
    except OSError:
        writable = False
    else:
        writable = os.access(preferred, os.W_OK)
    return preferred if writable else Path(tempfile.gettempdir(), f"pageport-numba-{os.getuid()}")


def digest_of_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
