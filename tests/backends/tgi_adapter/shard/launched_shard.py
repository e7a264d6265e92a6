"""The shard as a process, started the way TGI's launcher starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from pageport.backends.tgi_adapter.shim import write_shim

# What the launcher sets for a shard when nothing is asked of it.
ENVIRONMENT = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "CUDA_MEMORY_FRACTION": "1",
    "SAFETENSORS_FAST_GPU": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_ENABLE_HF_TRANSFER": "1",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    "CUDA_GRAPHS": "1,2,4,8,16,32",
    "ATTENTION": "flashinfer",
    "PREFIX_CACHING": "true",
}
_DEADLINE_S = 120.0


def start_server(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """`text-generation-server`, found on PATH, in a process group of its own, with all its streams piped."""
    shim = write_shim(folder / "shim", sys.executable)
    return subprocess.Popen(
        ["text-generation-server", *arguments],
        env={
            **os.environ,
            **ENVIRONMENT,
            "PATH": f"{shim}{os.pathsep}{os.environ['PATH']}",
            **(environment or {}),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        cwd=folder,
    )


def serve_arguments(model: Path | str, prefix: Path) -> tuple[str, ...]:
    return (
        *("serve", str(model), "--uds-path", str(prefix), "--logger-level", "INFO", "--json-output"),
        *("--otlp-service-name", "text-generation-inference.router"),
    )


def wait_for_socket(process: subprocess.Popen[str], path: Path) -> None:
    """The launcher's test of readiness: the file is there."""
    deadline = time.monotonic() + _DEADLINE_S
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the socket did not appear"
        time.sleep(0.1)


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def end(process: subprocess.Popen[str]) -> tuple[int, list[Any], str]:
    """Wait for the end: status, log lines, standard error."""
    output, errors = process.communicate(timeout=_DEADLINE_S)
    return process.returncode, [json.loads(line) for line in output.splitlines()], errors
