"""The embedded server's files: tritonserver from a wheel, and a backend directory made for this Python."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from pageport.core import TRITON_SERVER_WHEEL, PageportError, fetch_wheel

# What `backend:` says in a config.pbtxt that has no model.py of its own.
BACKEND_NAME = "pageport"
# Entries written for Triton's vLLM backend are served as they are: this server has no other backend of that name.
VLLM_BACKEND_NAME = "vllm"

MODEL_FILE = Path(__file__).with_name("model.py")


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """An unpacked `nvidia-pytriton` wheel."""

    root: Path

    @classmethod
    def fetch(cls) -> ServerFiles:
        """From the cache; downloaded the first time. Raises PageportError."""
        return cls(fetch_wheel(TRITON_SERVER_WHEEL))

    @property
    def binary(self) -> Path:
        return self.root / "pytriton" / "tritonserver" / "bin" / "tritonserver"

    def write_backend_directory(self, target: Path) -> None:
        """Make `target` the backend directory: Triton's Python backend, and Pageport on top of it.

        Copies, not links: the server refuses a Python-based backend whose files lie outside of its folder.

        Raises:
            PageportError: the wheel has no stub for this version of Python.
        """
        server = self.root / "pytriton" / "tritonserver"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
        if not stub.is_file():
            available = ", ".join(sorted(folder.name for folder in stub.parent.parent.iterdir()))
            raise PageportError(
                f"the embedded server has no stub for Python {version}; it has them for {available}"
            )
        python = target / "python"
        python.mkdir(parents=True)
        for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
            shutil.copy2(server / "backends" / "python" / name, python / name)
        shutil.copy2(stub, python / stub.name)
        (python / stub.name).chmod(0o755)
        for name in (BACKEND_NAME, VLLM_BACKEND_NAME):
            (target / name).mkdir()
            shutil.copy2(MODEL_FILE, target / name / "model.py")

    def environment(self) -> dict[str, str]:
        """Environment variables for the server.

        The stub embeds an isolated Python, which finds its packages through the first `python3` on PATH and
        its own library through LD_LIBRARY_PATH.
        """
        libraries = [sysconfig.get_config_var("LIBDIR"), str(self.root / "nvidia_pytriton.libs")]
        libraries += filter(None, [os.environ.get("LD_LIBRARY_PATH")])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(libraries), "PATH": path}
