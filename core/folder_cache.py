"""Folders under the user's cache: complete or absent, whoever asks, however often."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_dir

from pageport.core.errors import PageportError

_STAMP = ".complete.json"


def cache_dir() -> Path:
    """Where Pageport keeps what it fetched: `PAGEPORT_CACHE_DIR`, or the user's cache folder."""
    return Path(os.environ.get("PAGEPORT_CACHE_DIR") or user_cache_dir("pageport"))


def cached_folder(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, made by `fill` where it is missing or damaged.

    `fill` gets an empty folder, which becomes visible under its name in one rename, with a list of the
    files and sizes in it. Where that list does not hold any more, the folder is made anew. A lock lets
    one process fill while others wait for the result.

    Raises:
        PageportError: the cache cannot be written; or whatever `fill` raises.
    """
    target = cache_dir() / name
    if _is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):
            if not _is_complete(target):
                _make(target, fill)
    except OSError as error:
        raise PageportError(
            f"cannot write the cache folder {target.parent}: {error}; "
            "set PAGEPORT_CACHE_DIR to a folder with enough space that can be written"
        ) from error
    return target


def _make(target: Path, fill: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as scratch:
        fresh = Path(scratch, "fresh")
        fresh.mkdir()
        fill(fresh)
        (fresh / _STAMP).write_text(json.dumps(_sizes(fresh)))
        if target.exists():
            # Moved, not deleted in place: nobody shall see half of it.
            target.rename(Path(scratch, "damaged"))
        fresh.rename(target)


def _is_complete(folder: Path) -> bool:
    """Whether every listed file has its size. Files that came later (`__pycache__`) do no harm."""
    try:
        expected: dict[str, int] = json.loads((folder / _STAMP).read_text())
        return all((folder / name).stat().st_size == size for name, size in expected.items())
    except (OSError, ValueError, AttributeError):
        return False


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file, by path relative to the folder."""
    return {
        str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()
    }
