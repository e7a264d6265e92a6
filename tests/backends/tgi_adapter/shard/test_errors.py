"""One request that goes wrong ends alone, with words that say what is wrong; a call that goes wrong leaves nothing."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from manual_engine import END, until
from shard_client import Shard, refused, request, running_shard, texts

from pageport.backends.tgi_adapter.pb import generate_v3_pb2 as v3
from pageport.backends.tgi_adapter.shard.flow import RequestFlow
from pageport.backends.tgi_adapter.shard.incoming import NewRequest
from pageport.core import EngineDeadError, FinishReason, InvalidRequestError

BAD_REGEX = InvalidRequestError("grammar", "the regex '(' is not closed")


async def test_a_bad_request_alone_fails_its_call(shard: Shard) -> None:
    call = shard.prefill(0, [request(0)])
    (await shard.engine.submitted(1))[0].fail(BAD_REGEX)
    assert await refused(call) == (grpc.StatusCode.INVALID_ARGUMENT, "grammar: the regex '(' is not closed")
    assert shard.held_requests == []


async def test_a_bad_request_among_others_says_so_in_its_text(shard: Shard) -> None:
    call = shard.prefill(0, [request(0), request(1)])
    bad, good = await shard.engine.submitted(2)
    bad.fail(BAD_REGEX)
    answer = await call
    (generation,) = answer.generations
    problem = "[error] grammar: the regex '(' is not closed"
    assert generation.request_id == 0
    assert list(generation.tokens.texts) == [problem]
    assert list(generation.tokens.ids) == [END]
    assert list(generation.tokens.is_special) == [False]  # chats leave special tokens out
    assert generation.tokens.logprobs[0] < -1000  # best_of takes the other answer
    assert generation.generated_text == v3.GeneratedText(
        text=problem, generated_tokens=1, finish_reason=v3.FINISH_REASON_STOP_SEQUENCE
    )
    assert list(answer.batch.request_ids) == [1]
    good.emit("g")
    assert texts(await shard.decode(answer.batch)) == {1: ["g"]}


async def test_a_bad_request_beside_a_running_batch_ends_alone(shard: Shard) -> None:
    batch = await shard.started(0, request(0))
    call = shard.prefill(1, [request(1)], batch)
    (await shard.engine.submitted(2))[1].fail(BAD_REGEX)
    answer = await call
    assert texts(answer) == {1: ["[error] grammar: the regex '(' is not closed"]}
    assert list(answer.batch.request_ids) == [0]
    assert not shard.engine.submissions[0].aborted


async def test_without_chunking_the_call_of_a_bad_request_is_its_own(plain_shard: Shard) -> None:
    old = await plain_shard.started(0, request(0))
    call = plain_shard.prefill(1, [request(1)])
    (await plain_shard.engine.submitted(2))[1].fail(BAD_REGEX)
    assert (await refused(call))[0] == grpc.StatusCode.INVALID_ARGUMENT
    plain_shard.engine.submissions[0].emit("b")
    assert texts(await plain_shard.decode(old)) == {0: ["b"]}


async def test_a_failure_in_the_middle_comes_after_what_came_before_it(shard: Shard) -> None:
    batch = await shard.started(0, request(0), request(1))
    failing, _ = shard.engine.submissions
    failing.emit("b")
    failing.fail(EngineDeadError("two engines died under this request"))
    await until(lambda: shard.server.core.batches.get(0).flows[0].problem is not None)
    answer = await shard.decode(batch)
    assert texts(answer) == {0: ["b"]}
    answer = await shard.decode(answer.batch)
    (generation,) = answer.generations
    assert generation.generated_text.text == "ab[error] two engines died under this request"
    assert generation.generated_text.generated_tokens == 3
    assert list(answer.batch.request_ids) == [1]


async def test_a_failure_in_the_middle_alone_fails_the_call(shard: Shard) -> None:
    batch = await shard.started(0, request(0))
    call = shard.decode(batch)
    shard.engine.submissions[0].fail(EngineDeadError("gone"))
    assert await refused(call) == (grpc.StatusCode.INTERNAL, "gone")
    assert shard.held_requests == []


async def test_a_failure_does_not_take_the_last_tokens_of_the_others(shard: Shard) -> None:
    batch = await shard.started(0, request(0), request(1))
    good, failing = shard.engine.submissions
    good.emit("z", end=FinishReason.LENGTH)
    failing.fail(EngineDeadError("gone"))
    await until(lambda: shard.server.core.batches.get(0).flows[1].problem is not None)
    answer = await shard.decode(batch)
    assert texts(answer) == {0: ["z"], 1: ["[error] gone"]}
    assert not answer.HasField("batch")


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ({"end": FinishReason.ERROR, "error": "the device is out of memory"}, "the device is out of memory"),
        ({"end": FinishReason.STOP}, "the engine ended the request without a reason"),
    ],
)
async def test_an_answer_without_a_last_token_is_an_error(
    shard: Shard, outcome: dict[str, Any], words: str
) -> None:
    """The router hangs where a request ends without a token."""
    batch = await shard.started(0, request(0))
    call = shard.decode(batch)
    shard.engine.submissions[0].emit_nothing(**outcome)
    assert await refused(call) == (grpc.StatusCode.INTERNAL, words)


async def test_what_nobody_foresaw_ends_one_request(shard: Shard, caplog: pytest.LogCaptureFixture) -> None:
    batch = await shard.started(0, request(0), request(1))
    call = shard.decode(batch)
    shard.engine.submissions[0].fail(ZeroDivisionError("division by zero"))
    assert texts(await call) == {0: ["[error] internal error: ZeroDivisionError('division by zero')"]}
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parameters": {"temperature": -1.0}}, "temperature: "),
        ({"parameters": {"top_p": 7.0}}, "top_p: "),
        ({"max_new_tokens": 0}, "max_new_tokens: "),
        ({"top_n_tokens": 1000}, "top_n_tokens: "),
        ({"text": "", "add_special_tokens": False}, "inputs: the prompt has no tokens"),
    ],
)
async def test_what_is_wrong_is_named_and_the_others_go_on(
    shard: Shard, fields: dict[str, Any], words: str
) -> None:
    call = shard.prefill(0, [request(0, **fields), request(1)])
    answer = await call
    ((request_id, (text,)),) = texts(answer).items()
    assert request_id == 0
    assert text.startswith(f"[error] {words}")
    assert list(answer.batch.request_ids) == [1]
    assert len(shard.engine.submissions) == 1


async def test_a_decode_of_an_unknown_batch_drops_those_it_names(plain_shard: Shard) -> None:
    batch = await plain_shard.started(3, request(3))
    code, words = await refused(plain_shard.decode(batch, v3.CachedBatch(id=8)))
    assert (code, words) == (grpc.StatusCode.NOT_FOUND, "batches: there is no batch 8 here")
    await until(lambda: plain_shard.engine.submissions[0].aborted)
    assert plain_shard.held_requests == []


async def test_a_decode_of_nothing_is_an_error(shard: Shard) -> None:
    assert (await refused(shard.decode()))[0] == grpc.StatusCode.NOT_FOUND


async def test_a_failed_prefill_drops_the_batch_it_named(shard: Shard) -> None:
    """The router clears only the new batch."""
    batch = await shard.started(3, request(3))
    code, words = await refused(shard.prefill(4, [request(3)], batch))
    assert code == grpc.StatusCode.NOT_FOUND
    assert words == "batch: the request ids [3] are not new, or not distinct"
    await until(lambda: shard.engine.submissions[0].aborted)
    assert shard.held_requests == []


async def test_a_prefill_that_breaks_leaves_nothing(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    batch = await shard.started(3, request(3))
    begin = shard.server.core._begin

    def breaks_at_six(new: NewRequest) -> RequestFlow:
        if new.id == 6:
            raise ZeroDivisionError
        return begin(new)

    monkeypatch.setattr(shard.server.core, "_begin", breaks_at_six)
    call = shard.prefill(4, [request(5), request(6)], batch)
    assert (await refused(call))[0] == grpc.StatusCode.UNKNOWN
    call = shard.prefill(5, [request(5), request(6)])
    assert (await refused(call))[0] == grpc.StatusCode.UNKNOWN
    assert shard.held_requests == []
    assert "ZeroDivisionError" in caplog.text
    await until(lambda: all(submission.aborted for submission in shard.engine.submissions))
    assert not shard.server.core._tasks


async def test_a_prefill_on_an_unknown_batch_begins_nothing(shard: Shard) -> None:
    code, words = await refused(shard.prefill(4, [request(4)], v3.CachedBatch(id=3)))
    assert (code, words) == (grpc.StatusCode.NOT_FOUND, "cached_batch: there is no batch 3 here")
    assert shard.held_requests == []
    assert shard.engine.submissions == []


async def test_a_prefill_without_requests_is_an_error(shard: Shard) -> None:
    assert await refused(shard.prefill(4, [])) == (
        grpc.StatusCode.NOT_FOUND,
        "batch: it holds no request",
    )


async def test_a_failed_liveness_prefill_says_why(shard: Shard) -> None:
    await shard.started(0, request(0))
    call = shard.prefill(2**64 - 1, [request(2**64 - 1, max_new_tokens=1)])
    (await shard.engine.submitted(2))[1].fail(EngineDeadError("gone"))
    assert await refused(call) == (grpc.StatusCode.INTERNAL, "gone")
    assert shard.held_requests == [0]


async def test_a_rank_does_not_fail_a_call_that_holds_requests_of_others(tmp_path: Any) -> None:
    async with running_shard(tmp_path, rank=1, world_size=2) as shard:
        call = shard.prefill(0, [request(0), request(1)])
        (await shard.engine.submitted(1))[0].fail(EngineDeadError("gone"))
        assert texts(await call) == {1: ["[error] gone"]}
