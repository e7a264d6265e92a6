"""Which Python runs our child processes."""

from __future__ import annotations

import sys
from pathlib import Path


def python_executable() -> str:
    """This environment's python; an embedding program (Triton's stub) is not one, whatever `sys.executable` says."""
    if Path(sys.executable).name.startswith("python"):
        return sys.executable
    return str(Path(sys.prefix) / "bin" / "python3")
