"""Keeps an engine process running: starts it, carries messages, and starts the next one when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import signal
import socket
import struct
import subprocess
from typing import Protocol

from pageport.core.child_process import start_engine_process
from pageport.core.config import EngineConfig
from pageport.core.errors import EngineDeadError, PageportError
from pageport.core.messages import (
    EngineFailed,
    EngineReady,
    FromEngine,
    RequestRefused,
    StartEngine,
    StepOutputs,
    StopEngine,
    ToEngine,
)
from pageport.core.metrics import EngineInfo, EngineStats
from pageport.core.request import RequestOutput

logger = logging.getLogger("pageport.client")

# After so many engines in a row that ended before they could serve, there will be no engine any more: fewer where they
# end by themselves, more where somebody kills them, which may have an end.
MAX_FAILED_STARTS = 3
MAX_KILLED_STARTS = 10
_STOP_SECONDS = 5.0
_HEADER = struct.Struct("!i")  # the framing of multiprocessing.connection.Connection, for under 2 GiB


class EngineListener(Protocol):
    """Hears what becomes of the engine, in the supervisor's event loop."""

    def engine_ready(self) -> None:
        """An engine serves; messages reach it from now on."""
        ...

    def outputs_arrived(self, outputs: list[RequestOutput]) -> None: ...

    def request_refused(self, request_id: str, error: PageportError) -> None: ...

    def engine_died(self, reason: str) -> None:
        """The engine process is gone; the next one is being started. `reason` goes on after "the engine process"."""
        ...

    def engine_gone(self, error: PageportError) -> None:
        """There will be no engine any more. The last call."""
        ...


class EngineSupervisor:
    """Owns the engine process, whichever it is. One event loop owns it; it spends no time while nothing happens."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._listener: EngineListener | None = None
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        self._stats_before = EngineStats()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._serving = asyncio.Event()
        self._gone = asyncio.Event()
        self._error: PageportError | None = None  # why there is no engine any more
        self._last_words: PageportError | None = None  # what an engine said before it ended by itself
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self, listener: EngineListener) -> None:
        """Start the first engine; returns when it serves. Raises what keeps it from serving."""
        self._listener = listener
        self._task = asyncio.create_task(self._keep_running(listener))
        waits = [asyncio.ensure_future(event.wait()) for event in (self._serving, self._gone)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._error is not None:
            raise self._error

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "start() has not returned"
        return self._info

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def serving(self) -> bool:
        """Whether there is a process that has said that it serves."""
        return self._serving.is_set() and self._process is not None and self._process.poll() is None

    def stats(self) -> EngineStats:
        """The newest figures; counters go on over the engines."""
        return self._stats.after(self._stats_before)

    def send(self, message: ToEngine) -> None:
        """Without an engine the message is dropped: the next one knows nothing that it could be about."""
        if self._writer is not None:
            payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
            self._writer.write(_HEADER.pack(len(payload)) + payload)

    async def wait_gone(self) -> PageportError:
        """Wait until there will be no engine any more, other than by `close`; why."""
        await self._gone.wait()
        assert self._error is not None
        return self._error

    async def close(self) -> None:
        """End the engine, and tell the listener that there will be none."""
        self._closing = True
        self.send(StopEngine())
        if self._process is not None:
            if not self._serving.is_set():
                self._process.kill()  # it would not read the message before it has loaded its model
            await asyncio.to_thread(_stop_process, self._process)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._listener is not None and self._error is None:
            self._listener.engine_gone(EngineDeadError("the engine was stopped"))

    # -- private -------------------------------------------------------------------------------------------

    async def _keep_running(self, listener: EngineListener) -> None:
        failed_starts = 0
        try:
            while not self._closing:
                served = await self._run_engine(listener)
                failed_starts = 0 if served else failed_starts + 1
                if self._last_words is not None and self._info is None:
                    # A wrong configuration does not get better by trying again.
                    return self._give_up(listener, self._last_words)
                if failed_starts >= (MAX_KILLED_STARTS if self._was_killed() else MAX_FAILED_STARTS):
                    problem = f"the engine died {failed_starts} times in a row before it could serve"
                    return self._give_up(listener, EngineDeadError(f"{problem}{self._said()}"))
        except Exception as error:
            logger.exception("the engine process cannot be kept running")
            problem = f"the engine process cannot be kept running: {error}"
            self._give_up(listener, EngineDeadError(problem))

    def _give_up(self, listener: EngineListener, error: PageportError) -> None:
        if not self._closing:
            self._error = error
            self._gone.set()
            listener.engine_gone(error)

    async def _run_engine(self, listener: EngineListener) -> bool:
        """One engine process from start to end; whether it ever served."""
        ours, theirs = socket.socketpair()
        try:
            self._process = process = start_engine_process(self._config, theirs)
        except OSError:
            ours.close()
            raise
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._last_words = None
        self.send(StartEngine(self._config))
        try:
            while True:
                self._hear(await _receive(reader), listener)
        except (asyncio.IncompleteReadError, ConnectionError):
            return self._serving.is_set()
        finally:
            self._serving.clear()
            self._writer.close()
            self._writer = None
            await asyncio.to_thread(_stop_process, process)
            self._stats_before = self.stats()
            self._stats = EngineStats(kv_blocks_total=self._stats.kv_blocks_total)
            if not self._closing:
                reason = f"{_describe_exit(process.returncode)}{self._said()}"
                logger.error("the engine process %s", reason)
                listener.engine_died(reason)

    def _was_killed(self) -> bool:
        """Whether the last process was ended from outside; none ends itself in this way."""
        return self._process is not None and self._process.returncode in (-signal.SIGKILL, -signal.SIGTERM)

    def _said(self) -> str:
        return f": {self._last_words}" if self._last_words is not None else ""

    def _hear(self, message: FromEngine, listener: EngineListener) -> None:
        match message:
            case StepOutputs(outputs, stats):
                self._stats = stats
                listener.outputs_arrived(outputs)
            case RequestRefused(request_id, error):
                listener.request_refused(request_id, error)
            case EngineReady(info, stats):
                self._info, self._stats = info, stats
                self._serving.set()
                listener.engine_ready()
            case EngineFailed(error):
                self._last_words = error


async def _receive(reader: asyncio.StreamReader) -> FromEngine:
    (length,) = _HEADER.unpack(await reader.readexactly(_HEADER.size))
    message: FromEngine = pickle.loads(await reader.readexactly(length))
    return message


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that was asked to end, or is dead; kill it if it takes too long."""
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _describe_exit(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
