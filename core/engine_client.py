"""The async face of an engine that runs in a process of its own, and is started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import pickle
import random
import signal
import socket
import struct
import subprocess
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from tokenizers import Tokenizer

from pageport.core.child_process import start_engine_process
from pageport.core.config import EngineConfig
from pageport.core.errors import EngineDeadError, InvalidRequestError, RequestTimeoutError
from pageport.core.mailbox import Mailbox
from pageport.core.messages import (
    AbortRequest,
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
from pageport.core.request import EngineRequest, RequestOutput, ServiceClass
from pageport.core.sampling_params import SamplingParams
from pageport.core.tokenizer import load_tokenizer

logger = logging.getLogger("pageport.client")

# After this many engines in a row died before they could serve, the client gives up for good.
MAX_FAILED_STARTS = 3
_STOP_SECONDS = 5.0
_HEADER = struct.Struct(
    "!i"
)  # the framing of multiprocessing.connection.Connection, for messages under 2 GiB


class EngineClient:
    """See `EngineClientProtocol`. One event loop owns it; it spends no time while nothing happens."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._tokenizer: Tokenizer | None = None
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._ready = asyncio.Event()
        self._dead: Exception | None = None
        self._closing = False
        self._supervisor: asyncio.Task[None] | None = None
        self._mailboxes: dict[str, Mailbox] = {}
        self._numbers = itertools.count()
        self._seeds = random.Random(config.seed)

    # -- EngineClientProtocol ------------------------------------------------------------------------------

    async def start(self) -> None:
        self._tokenizer = await asyncio.to_thread(
            load_tokenizer, self._config.tokenizer or self._config.model
        )
        self._supervisor = asyncio.create_task(self._supervise())
        await self._wait_ready()

    async def submit(
        self,
        prompt: str | list[int],
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
        service_class: ServiceClass = ServiceClass.REALTIME,
    ) -> AsyncIterator[RequestOutput]:
        arrival = time.monotonic()
        request_id = request_id or f"request-{next(self._numbers)}"
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                token_ids = await self._tokenize(prompt)
                await self._wait_ready()
            seed = self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed % 2**64
            request = EngineRequest(request_id, token_ids, sampling, arrival, seed, service_class)
            async with aclosing(self._stream(request, deadline)) as outputs:
                async for output in outputs:
                    yield output
        except TimeoutError:
            raise RequestTimeoutError(f"timeout: the request was not finished after {timeout} s") from None

    async def abort(self, request_id: str) -> None:
        self._send_if_alive(AbortRequest(request_id))

    def health(self) -> bool:
        serving = self._ready.is_set() and self._dead is None
        return serving and self._process is not None and self._process.poll() is None

    def stats(self) -> EngineStats:
        return self._stats

    async def close(self) -> None:
        self._closing = True
        self._send_if_alive(StopEngine())
        if self._process is not None:
            await asyncio.to_thread(_stop_process, self._process)
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        self._fail_requests("the engine was stopped")

    # -- more for callers that live in Python --------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved; valid once `start` has returned."""
        assert self._info is not None, "start() has not returned"
        return self._info

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine that runs now."""
        return self._process.pid if self._process is not None else None

    # -- private -------------------------------------------------------------------------------------------

    async def _tokenize(self, prompt: str | list[int]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return tuple(prompt)
        assert self._tokenizer is not None, "start() has not returned"
        encoding = await asyncio.to_thread(self._tokenizer.encode, prompt)
        return tuple(encoding.ids)

    async def _stream(self, request: EngineRequest, deadline: float | None) -> AsyncGenerator[RequestOutput]:
        """Send a request and pass on its outputs; whoever leaves early aborts it.

        Only now is the request in flight: one that still waits for an engine is not failed by the death of another.
        """
        request_id = request.request_id
        if request_id in self._mailboxes:
            raise InvalidRequestError("request_id", f"{request_id!r} is in flight already")
        mailbox = self._mailboxes[request_id] = Mailbox()
        finished = False
        try:
            self._send(request)
            while not finished:
                async with asyncio.timeout_at(deadline):
                    outputs = await mailbox.take()
                for output in outputs:
                    finished = finished or output.request_finished
                    yield output
        finally:
            del self._mailboxes[request_id]
            if not finished:
                self._send_if_alive(AbortRequest(request_id))

    async def _wait_ready(self) -> None:
        await self._ready.wait()
        if self._dead is not None:
            raise self._dead

    def _send(self, message: ToEngine) -> None:
        if self._writer is None:
            raise EngineDeadError("the engine process has just ended; send the request again")
        payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._writer.write(_HEADER.pack(len(payload)) + payload)

    def _send_if_alive(self, message: ToEngine) -> None:
        if self._writer is not None:
            self._send(message)

    async def _supervise(self) -> None:
        """Keep one engine running; returns when the client closes or there will be no engine any more."""
        failed_starts = 0
        try:
            while not self._closing and self._dead is None:
                served = await self._run_engine()
                failed_starts = 0 if served else failed_starts + 1
                if failed_starts == MAX_FAILED_STARTS and self._dead is None:
                    self._dead = EngineDeadError(
                        f"the engine died {failed_starts} times before it could serve"
                    )
        except Exception as error:
            logger.exception("the engine process cannot be kept running")
            self._dead = EngineDeadError(f"the engine process cannot be kept running: {error}")
        finally:
            self._ready.set()  # lets those who wait see that there will be none

    async def _run_engine(self) -> bool:
        """One engine process from start to end; whether it ever served."""
        ours, theirs = socket.socketpair()
        try:
            self._process = process = start_engine_process(self._config, theirs)
        except OSError:
            ours.close()
            raise
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._send(StartEngine(self._config))
        served = False
        try:
            while True:
                message = await _receive(reader)
                served = served or isinstance(message, EngineReady)
                self._handle(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            return served
        finally:
            self._writer.close()
            self._writer = None
            if not (self._dead or self._closing):
                self._ready.clear()
            await asyncio.to_thread(_stop_process, process)
            if not self._closing:
                reason = _describe_exit(process.returncode)
                logger.error("the engine process %s", reason)
                self._fail_requests(f"the engine process {reason}; it is being started again")
            self._stats = EngineStats(kv_blocks_total=self._stats.kv_blocks_total)

    def _handle(self, message: FromEngine) -> None:
        match message:
            case StepOutputs(outputs, stats):
                self._stats = stats
                for output in outputs:
                    mailbox = self._mailboxes.get(output.request_id)
                    if mailbox is not None:
                        mailbox.put(output)
            case RequestRefused(request_id, error):
                mailbox = self._mailboxes.get(request_id)
                if mailbox is not None:
                    mailbox.fail(error)
            case EngineReady(info, stats):
                self._info, self._stats = info, stats
                self._ready.set()
            case EngineFailed(error):
                self._dead = error  # a wrong configuration does not get better by trying again
                self._ready.set()

    def _fail_requests(self, problem: str) -> None:
        for mailbox in self._mailboxes.values():
            mailbox.fail(EngineDeadError(problem))


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
