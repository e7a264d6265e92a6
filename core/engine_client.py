"""The async face of an engine that runs in a process of its own. Requests outlive that process."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace

from tokenizers import Tokenizer

from pageport.core.config import EngineConfig
from pageport.core.engine_supervisor import EngineSupervisor
from pageport.core.errors import PageportError, RequestTimeoutError
from pageport.core.flight import Flight
from pageport.core.flight_control import FlightControl
from pageport.core.grammar import check_grammar
from pageport.core.metrics import EngineInfo, EngineStats
from pageport.core.request import EngineRequest, RequestOutput, ServiceClass
from pageport.core.sampling_params import SamplingParams
from pageport.core.tokenizer import load_tokenizer


class EngineClient:
    """See `EngineClientProtocol`. One event loop owns it; it spends no time while nothing happens."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._tokenizer: Tokenizer | None = None
        self._supervisor = EngineSupervisor(config)
        self._flights = FlightControl(self._supervisor.send)
        self._numbers = itertools.count()
        self._seeds = random.Random(config.seed)

    # -- EngineClientProtocol ------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved; valid once `start` has returned."""
        return self._supervisor.info

    async def start(self) -> None:
        self._tokenizer = await asyncio.to_thread(
            load_tokenizer, self._config.tokenizer or self._config.model
        )
        await self._supervisor.start(self._flights)

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
                if sampling.grammar is not None:
                    await asyncio.to_thread(check_grammar, sampling.grammar)
            seed = self._seeds.getrandbits(64) if sampling.seed is None else sampling.seed % 2**64
            request = EngineRequest(request_id, token_ids, sampling, arrival, seed, service_class)
            async with aclosing(self._stream(Flight(request), deadline)) as outputs:
                async for output in outputs:
                    yield output
        except TimeoutError:
            raise RequestTimeoutError(f"timeout: the request was not finished after {timeout} s") from None

    async def abort(self, request_id: str) -> None:
        self._flights.abort(request_id)

    def health(self) -> bool:
        return self._supervisor.serving

    def stats(self) -> EngineStats:
        stats = self._supervisor.stats()
        return replace(stats, num_waiting=stats.num_waiting + self._flights.num_waiting)

    async def wait_dead(self) -> PageportError:
        return await self._supervisor.wait_gone()

    async def close(self) -> None:
        await self._supervisor.close()

    # -- more for callers that live in Python --------------------------------------------------------------

    @property
    def engine_pid(self) -> int | None:
        """Process id of the newest engine."""
        return self._supervisor.pid

    # -- private -------------------------------------------------------------------------------------------

    async def _tokenize(self, prompt: str | list[int]) -> tuple[int, ...]:
        if not isinstance(prompt, str):
            return tuple(prompt)
        assert self._tokenizer is not None, "start() has not returned"
        encoding = await asyncio.to_thread(self._tokenizer.encode, prompt)
        return tuple(encoding.ids)

    async def _stream(self, flight: Flight, deadline: float | None) -> AsyncGenerator[RequestOutput]:
        """Send a request and pass on its outputs; whoever leaves early aborts it."""
        self._flights.launch(flight)
        finished = False
        try:
            while not finished:
                if deadline is None:  # a timeout costs 5 µs a token even where it never ends
                    outputs = await flight.mailbox.take()
                else:
                    async with asyncio.timeout_at(deadline):
                        outputs = await flight.mailbox.take()
                for output in outputs:
                    finished = finished or output.request_finished
                    yield output
        finally:
            self._flights.leave(flight)
