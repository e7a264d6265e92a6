"""Starting the engine's process: the right interpreter, and thread settings before torch is loaded."""

from __future__ import annotations

import os
import socket
import subprocess

import psutil

from pageport.core.config import EngineConfig
from pageport.core.interpreter import python_executable


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
    """OpenMP reads these once, when torch loads it: too early for a running process to set."""
    return {
        "OMP_NUM_THREADS": str(config.num_threads or len(psutil.Process().cpu_affinity())),
        "OMP_WAIT_POLICY": config.omp_wait_policy.upper(),
        "TOKENIZERS_PARALLELISM": "false",
    }
