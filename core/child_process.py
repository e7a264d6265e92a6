"""Starting the engine's process: the right interpreter, and thread settings before torch is loaded."""

from __future__ import annotations

import os
import socket
import subprocess

import psutil

from pageport.core.config import EngineConfig, WaitPolicy
from pageport.core.interpreter import python_executable

# Turns of libgomp's waiting loop before a thread sleeps: longer than what lies between two parallel pieces of a step.
# A step wakes its threads some 200 times, and a thread that sleeps takes about 50 µs to come back. Measured on two
# cores with the demo model behind the embedded router, its clients running, output tokens/s: 5,000 turns against none
# 626 : 525 at 64 streams, 347 : 256 at 8, 91 : 57 at one. Where another program keeps a core busy all the time, 5,000
# turns lose instead: a step of 64 takes 111 ms against 77, of one 38 against 15.
_BRIEF_TURNS = 5000


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
    policy = config.omp_wait_policy
    environment = {
        "OMP_NUM_THREADS": str(config.num_threads or len(psutil.Process().cpu_affinity())),
        "OMP_WAIT_POLICY": "ACTIVE" if policy is WaitPolicy.ACTIVE else "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if policy is not WaitPolicy.ACTIVE:  # goes before OMP_WAIT_POLICY
        environment["GOMP_SPINCOUNT"] = str(_BRIEF_TURNS if policy is WaitPolicy.BRIEF else 0)
    return environment
