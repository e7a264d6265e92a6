"""A real Triton server as a child process, for machines without NVIDIA's container."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pageport.backends.triton_python.server_files import ServerFiles
from pageport.backends.triton_python.server_log import ServerLog
from pageport.core import PageportError

SHARED_MEMORY = Path("/dev/shm")
_POLL_SECONDS = 0.1
# What the server may take beyond its own time limit for running requests; some versions hang after that.
_STOP_GRACE_SECONDS = 3.0


class ServerError(PageportError):
    """The server did not start, or ended on its own; the message has the lines of its log that say why."""


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports of the three listeners; 0: any free one."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0

    def resolve(self, host: str) -> Ports:
        """Choose free ports for zeros, and check the others.

        Raises:
            ServerError: a port is in use, or the same one is given twice.
        """
        given = {"http": self.http, "grpc": self.grpc, "metrics": self.metrics}
        chosen: dict[str, int] = {}
        with contextlib.ExitStack() as held:
            for name, port in given.items():
                probe = held.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                except OSError as error:
                    raise ServerError(f"{name} port {port} on {host}: {error.strerror}") from None
                chosen[name] = probe.getsockname()[1]
        return Ports(**chosen)


class TritonServer:
    """A running `tritonserver`; a context manager.

    Args:
        repository: the model repository to serve.
        log_file: where the server's log goes; None: a temporary file that is removed at the end.
        on_line: called with each line of the log, from another thread.
        ready_timeout: seconds until all models must be ready.
        stop_timeout: seconds that running requests and models get to end when the server stops.
        extra_arguments: passed on to `tritonserver`.

    Attributes (valid while it runs):
        pid, http_url, grpc_url, metrics_url, log_path.
    """

    def __init__(
        self,
        repository: Path,
        *,
        host: str = "127.0.0.1",
        ports: Ports = Ports(),
        log_file: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        ready_timeout: float = 300.0,
        stop_timeout: float = 30.0,
        extra_arguments: Sequence[str] = (),
    ) -> None:
        self._repository = repository
        self._host = host
        self._ports = ports
        self._log_file = log_file
        self._on_line = on_line
        self._ready_timeout = ready_timeout
        self._stop_timeout = stop_timeout
        self._extra_arguments = tuple(extra_arguments)
        self._shm_prefix = f"pageport_{os.getpid()}_{secrets.token_hex(4)}_"
        self._resources = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: ServerLog | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def http_url(self) -> str:
        """`host:port`, as `tritonclient` wants it."""
        return f"{self._host}:{self._ports.http}"

    @property
    def grpc_url(self) -> str:
        """`host:port`, as `tritonclient` wants it."""
        return f"{self._host}:{self._ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """The whole URL of the metrics page."""
        return f"http://{self._host}:{self._ports.metrics}/metrics"

    @property
    def log_path(self) -> Path:
        assert self._log is not None, "the server was not started"
        return self._log.path

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until all models are ready.

        Raises:
            ServerError: a port is busy, a model does not load, or it takes too long; nothing is left running.
        """
        if not self._repository.is_dir():
            raise ServerError(f"there is no model repository at {self._repository}")
        files = ServerFiles.fetch()
        self._ports = self._ports.resolve(self._host)
        try:
            scratch = Path(
                self._resources.enter_context(tempfile.TemporaryDirectory(prefix="pageport-triton-"))
            )
            files.write_backend_directory(scratch / "backends")
            self._process = subprocess.Popen(
                [str(files.binary), *self._arguments(scratch / "backends")],
                env=files.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._log = ServerLog(self._process, self._log_file or scratch / "server.log", self._on_line)
            self._wait_ready()
        except BaseException:
            self.stop()
            raise

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the server ends; its exit status, or None where `timeout` seconds passed first."""
        assert self._process is not None, "the server was not started"
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """End the server with all its processes and remove its shared memory; once is enough."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                self.wait(self._stop_timeout + _STOP_GRACE_SECONDS)
            # The session is the server's own: whatever is left in it was started by it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._log is not None:
            self._log.close()
        for segment in SHARED_MEMORY.glob(f"{self._shm_prefix}*"):
            segment.unlink(missing_ok=True)
        self._resources.close()

    def _arguments(self, backends: Path) -> list[str]:
        listeners = {"http": self._ports.http, "grpc": self._ports.grpc, "metrics": self._ports.metrics}
        arguments = [f"--model-repository={self._repository}", f"--backend-directory={backends}"]
        for name, port in listeners.items():
            arguments += [f"--{name}-address={self._host}", f"--{name}-port={port}"]
        return [
            *arguments,
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            f"--exit-timeout-secs={max(1, round(self._stop_timeout))}",
            *self._extra_arguments,
        ]

    def _wait_ready(self) -> None:
        assert self._log is not None
        deadline = time.monotonic() + self._ready_timeout
        while not self._is_ready():
            if (status := self.wait(_POLL_SECONDS)) is not None:
                self._log.close()
                raise ServerError(f"the server ended with status {status}:\n{self._log.explanation()}")
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the server was not ready after {self._ready_timeout:g} s:\n{self._log.explanation()}"
                )

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.http_url}/v2/health/ready", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
