"""Starting the engine's process: the right interpreter, and thread settings before torch is loaded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import platformdirs
import psutil

from pageport.core.config import EngineConfig


def start_engine_process(config: EngineConfig, channel: socket.socket) -> subprocess.Popen[bytes]:
    """Start `pageport.core.engine_process` on its end of a socket pair, and close that end here.

    The child ends by itself when this process dies: its socket then reads end-of-file.
    """
    try:
        return subprocess.Popen(
            [python_executable(), "-m", "pageport.core.engine_process", str(channel.fileno())],
            pass_fds=(channel.fileno(),),
            stdin=subprocess.DEVNULL,
            env={**os.environ, **thread_environment(config)},
        )
    finally:
        channel.close()


def thread_environment(config: EngineConfig) -> dict[str, str]:
    """OpenMP and Numba read these once, when they are loaded: too early for a running process to set."""
    threads = str(config.num_threads or len(psutil.Process().cpu_affinity()))
    cache = Path(platformdirs.user_cache_dir("pageport")) / "numba"
    return {
        "OMP_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": config.omp_wait_policy.upper(),
        "NUMBA_NUM_THREADS": threads,
        "NUMBA_THREADING_LAYER": "omp",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", str(cache)),
        "TOKENIZERS_PARALLELISM": "false",
    }


def python_executable() -> str:
    """This environment's python; an embedding program (Triton's stub) is not one, whatever `sys.executable` says."""
    if Path(sys.executable).name.startswith("python"):
        return sys.executable
    return str(Path(sys.prefix) / "bin" / "python3")
