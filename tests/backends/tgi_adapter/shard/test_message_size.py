"""No answer is larger than what the router reads, and nothing is lost but what could never be sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_engine import until
from shard_client import Shard, request, running_shard

from pageport.backends.tgi_adapter.generation import (
    GeneratedText,
    PrefillToken,
    StopReason,
    Token,
    TokenEvent,
)
from pageport.backends.tgi_adapter.pb import generate_v3_pb2 as v3
from pageport.backends.tgi_adapter.shard.message_size import MAX_EVENT_BYTES, event_bytes, fitting
from pageport.backends.tgi_adapter.shard.outgoing import write_generation
from pageport.core import FinishReason

ROUTERS_LIMIT = 4 * 2**20

tokens = st.builds(
    Token, st.integers(0, 2**31), st.text(max_size=8), st.floats(-100, 0, width=32), st.booleans()
)
prefills = st.builds(PrefillToken, st.integers(0, 2**31), st.text(max_size=200), st.floats(-1, 0, width=32))
ends = st.builds(
    GeneratedText,
    st.text(max_size=400),
    st.integers(0, 2**31),
    st.sampled_from(StopReason),
    st.integers(0, 2**64 - 1),
)
events = st.builds(
    TokenEvent,
    tokens,
    st.lists(tokens, max_size=25).map(tuple),
    st.lists(prefills, max_size=25).map(tuple),
    st.none() | ends,
)


@given(st.lists(events, min_size=1, max_size=4))
def test_the_bound_of_an_event_holds(given_events: Sequence[TokenEvent]) -> None:
    # Only the first event of a message may bring the prompt, and only the last one the end.
    bound = sum(map(event_bytes, given_events))
    message = v3.PrefillResponse()
    write_generation(message.generations.add(), 2**64 - 1, given_events)
    assert message.ByteSize() <= bound


def event(size: int) -> TokenEvent:
    return TokenEvent(Token(1, "x" * (size - 82), -1.0, special=False))


def test_what_does_not_fit_stays() -> None:
    three = [event(100), event(200), event(300)]
    assert [event_bytes(one) for one in three] == [100, 200, 300]
    assert fitting(0, three, 600) == (three, 600)
    assert fitting(0, three, 599) == (three[:2], 300)
    assert fitting(0, three, 99) == ([], 0)


def test_a_prompt_that_no_message_holds_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    prompt = tuple(PrefillToken(7, "word", None) for _ in range(200_000))
    token = Token(1, "a", -1.0, special=False)
    ((chosen,), size) = fitting(5, [TokenEvent(token, prefill=prompt)], MAX_EVENT_BYTES)
    assert chosen == TokenEvent(token)
    assert size < 200
    assert "request 5: log-probabilities of 200000 prompt tokens are left out" in caplog.text


async def test_long_prompts_come_in_several_answers(tmp_path: Path) -> None:
    """Two prompts of 150,000 tokens, with log-probabilities, are too much for one answer."""
    async with running_shard(tmp_path, prefill_logprobs=True) as shard:
        length = 150_000
        call = shard.prefill(
            0,
            [request(number, "x" * length, truncate=0, prefill_logprobs=True) for number in range(2)],
        )
        for submission in await shard.engine.submitted(2):
            submission.emit("a")
        first = await call
        await until(shard.server.core.batches.get(0).has_news)
        second = await shard.decode(first.batch)
        for number, answer in enumerate([first, second]):
            (generation,) = answer.generations
            assert generation.request_id == number
            assert len(generation.prefill_tokens.ids) == length
            assert math.isnan(generation.prefill_tokens.logprobs[0])
            assert answer.ByteSize() < ROUTERS_LIMIT


async def test_tokens_that_piled_up_come_in_order(shard: Shard) -> None:
    batch = await shard.started(0, request(0, top_n_tokens=20, max_new_tokens=20_000))
    text = "0123456789" * 1500
    shard.engine.submissions[0].emit(text, end=FinishReason.LENGTH)
    received = ""
    answers = 0
    while batch is not None:
        answer = await shard.decode(batch)
        assert answer.ByteSize() < ROUTERS_LIMIT
        (generation,) = answer.generations
        received += "".join(generation.tokens.texts)
        answers += 1
        batch = answer.batch if answer.HasField("batch") else None
        assert generation.HasField("generated_text") == (batch is None)
    assert received == text
    assert generation.generated_text.text == "a" + text
    assert answers > 1
