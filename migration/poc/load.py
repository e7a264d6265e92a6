"""The load generator: a fixed number of streams, each asking its next question when the last is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pageport.migration.poc.statistics import Percentiles, gaps, percentiles_ms
from pageport.migration.poc.workload import LoadRequest


class Piece(NamedTuple):
    """Part of an answer as it arrived: one message of a stream, or the whole answer of a unary call.

    `token_ids` is empty where the contract does not carry ids.
    """

    text: str
    num_tokens: int
    token_ids: tuple[int, ...] = ()


Ask = Callable[[LoadRequest], AsyncIterator[Piece]]


@dataclass(slots=True)
class Answer:
    """One request as its client saw it. Times are seconds of `time.perf_counter`."""

    request: LoadRequest
    sent: float
    arrivals: list[float] = field(default_factory=list)
    num_tokens: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    error: str | None = None

    @property
    def complete(self) -> bool:
        return self.error is None and self.num_tokens == self.request.output_tokens


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a whole load came to, as seen by its clients.

    Attributes:
        seconds: from the first request sent to the last answer complete.
        itl: gaps between the messages of a stream; None where answers come in one piece.
    """

    answers: list[Answer]
    seconds: float
    output_tokens_per_s: float
    ttft: Percentiles | None
    itl: Percentiles | None
    peak_in_flight: int

    @property
    def failures(self) -> list[Answer]:
        return [answer for answer in self.answers if not answer.complete]


class _InFlight:
    """Counts the requests that are open."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0

    def __enter__(self) -> None:
        self.now += 1
        self.peak = max(self.peak, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1


async def run_load(
    ask: Ask,
    load: Sequence[LoadRequest],
    *,
    concurrency: int,
    timeout_s: float,
    on_answer: Callable[[Answer], None] = lambda _: None,
) -> LoadResult:
    """Send the load over `concurrency` streams and wait for all answers.

    A request that fails, or is not answered `timeout_s` after it was sent, is counted as a failure;
    its tokens do not count.
    """
    waiting = iter(load)
    answers: list[Answer] = []
    in_flight = _InFlight()

    async def stream() -> None:
        for request in waiting:
            with in_flight:
                answer = await _ask_one(ask, request, timeout_s)
            answers.append(answer)
            on_answer(answer)

    start = time.perf_counter()
    await asyncio.gather(*(stream() for _ in range(concurrency)))
    return summarise(answers, time.perf_counter() - start, in_flight.peak)


async def _ask_one(ask: Ask, request: LoadRequest, timeout_s: float) -> Answer:
    answer = Answer(request, time.perf_counter())
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in ask(request):
                if piece.num_tokens:
                    answer.arrivals.append(time.perf_counter())
                answer.num_tokens += piece.num_tokens
                answer.text += piece.text
                answer.token_ids += piece.token_ids
    except TimeoutError:
        answer.error = f"no complete answer within {timeout_s:.0f} s"
    except Exception as error:  # whatever the server or the connection did to this request, the others go on
        answer.error = f"{type(error).__name__}: {error}"
    return answer


def summarise(answers: list[Answer], seconds: float, peak_in_flight: int) -> LoadResult:
    """Only complete answers count, in tokens as in latencies."""
    complete = [answer for answer in answers if answer.complete]
    tokens = sum(answer.num_tokens for answer in complete)
    return LoadResult(
        answers=answers,
        seconds=seconds,
        output_tokens_per_s=tokens / seconds,
        ttft=percentiles_ms([answer.arrivals[0] - answer.sent for answer in complete]),
        itl=percentiles_ms([gap for answer in complete for gap in gaps(answer.arrivals)]),
        peak_in_flight=peak_in_flight,
    )
