"""The load generator on servers that exist only here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pageport.migration.poc.load import Piece, run_load, summarise
from tests.migration.outcomes import make_answer, make_request


async def _four_tokens(_request: object) -> AsyncIterator[Piece]:
    for number in range(4):
        await asyncio.sleep(0)
        yield Piece(f"{number} ", 1, (number,))


async def test_pieces_are_put_together() -> None:
    result = await run_load(_four_tokens, [make_request()], concurrency=1, timeout_s=30)
    (answer,) = result.answers
    assert (answer.text, answer.token_ids, answer.num_tokens) == ("0 1 2 3 ", [0, 1, 2, 3], 4)
    assert answer.complete
    assert len(answer.arrivals) == 4
    assert result.output_tokens_per_s == pytest.approx(4 / result.seconds)


async def test_never_more_streams_than_asked_for() -> None:
    now = peak = 0

    async def counting(_request: object) -> AsyncIterator[Piece]:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        await asyncio.sleep(0)
        yield Piece("", 4)
        now -= 1

    load = [make_request(index) for index in range(20)]
    result = await run_load(counting, load, concurrency=3, timeout_s=30)
    assert peak == result.peak_in_flight == 3
    assert sorted(answer.request.index for answer in result.answers) == list(range(20))


async def test_a_stream_goes_on_after_an_error() -> None:
    async def second_fails(request: object) -> AsyncIterator[Piece]:
        if request == load[1]:
            raise ConnectionError("gone")
        yield Piece("", 4)

    load = [make_request(index) for index in range(3)]
    result = await run_load(second_fails, load, concurrency=1, timeout_s=30)
    assert [answer.error for answer in result.answers] == [None, "ConnectionError: gone", None]
    assert [answer.request.index for answer in result.failures] == [1]
    assert result.output_tokens_per_s == pytest.approx(8 / result.seconds)


async def test_a_silent_server_is_left() -> None:
    async def silent(_request: object) -> AsyncIterator[Piece]:
        await asyncio.Event().wait()
        yield Piece("", 4)

    result = await run_load(silent, [make_request()], concurrency=1, timeout_s=0.01)
    assert result.failures[0].error == "no complete answer within 0 s"
    assert result.output_tokens_per_s == 0
    assert result.ttft is None


async def test_a_short_answer_is_a_failure() -> None:
    result = await run_load(_four_tokens, [make_request(output_tokens=5)], concurrency=1, timeout_s=30)
    assert len(result.failures) == 1
    assert result.output_tokens_per_s == 0


def test_latencies_by_hand() -> None:
    answers = [
        make_answer(make_request(0), 10.0, [10.5, 10.6, 10.8, 11.2]),
        make_answer(make_request(1), 10.0, [11.5]),
    ]
    result = summarise(answers, seconds=2.0, peak_in_flight=2)
    assert result.ttft is not None
    assert result.ttft.p50 == pytest.approx(1000)  # halfway between 500 and 1500
    assert result.itl is not None
    assert result.itl.p50 == pytest.approx(200)  # of 100, 200, 400; the unary answer has no gaps
    assert result.output_tokens_per_s == pytest.approx(4.0)


def test_whole_answers_have_no_gaps() -> None:
    result = summarise([make_answer(make_request(), 0.0, [1.0])], seconds=1.0, peak_in_flight=1)
    assert result.itl is None
