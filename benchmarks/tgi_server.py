"""Starts `pageport tgi launcher` for a measurement, and waits until it answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_START_SECONDS = 120.0


@contextmanager
def tgi_server(
    model: Path, *, rust: bool, engine: Mapping[str, object], flags: tuple[str, ...] = ()
) -> Iterator[str]:
    """A launcher with its server; gives the root URL.

    Args:
        rust: TGI's own launcher and router, which must be on PATH, with our shard; else the embedded router.
        engine: engine arguments, passed as PAGEPORT_* variables.
    """
    port = _free_port()
    environment = os.environ | {f"PAGEPORT_{name.upper()}": str(value) for name, value in engine.items()}
    command = [
        str(Path(sys.executable).with_name("pageport")), "tgi", "launcher", "--router", "rust" if rust else "embedded",
        "--model-id", str(model), "--hostname", "127.0.0.1", "--port", str(port), "--max-concurrent-requests", "512",
        *flags,
    ]  # fmt: skip
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_healthy(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the launcher ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"{url}/health did not answer within {_START_SECONDS:.0f} s")
