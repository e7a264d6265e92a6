"""Prefill and Decode: what they wait for, and what they bring."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from manual_engine import END, until
from shard_client import LIVENESS, Shard, request, running_shard, texts

from pageport.backends.tgi_adapter.pb import generate_v3_pb2 as v3
from pageport.core import FinishReason


async def test_one_request_from_its_prompt_to_its_end(shard: Shard) -> None:
    call = shard.prefill(3, [request(5, "Hi", max_new_tokens=9)])
    (submission,) = await shard.engine.submitted(1)
    assert submission.prompt == "Hi"
    assert not call.done()
    submission.emit("a")
    first = await call
    assert texts(first) == {5: ["a"]}
    assert first.batch == v3.CachedBatch(id=3, request_ids=[5], size=1, max_tokens=11, current_tokens=1)
    submission.emit("b")
    second = await shard.decode(first.batch)
    assert texts(second) == {5: ["b"]}
    (generation,) = second.generations
    assert list(generation.tokens.logprobs) == [-0.5]
    assert not generation.HasField("generated_text")
    submission.emit(end=FinishReason.STOP)
    last = await shard.decode(second.batch)
    (generation,) = last.generations
    assert list(generation.tokens.ids) == [END]
    assert list(generation.tokens.is_special) == [True]
    assert generation.generated_text == v3.GeneratedText(
        text="ab", generated_tokens=3, finish_reason=v3.FINISH_REASON_EOS_TOKEN
    )
    assert not last.HasField("batch")
    assert shard.held_requests == []
    assert not submission.aborted


async def test_everything_that_has_come_is_taken_at_once(shard: Shard) -> None:
    batch = await shard.started(0, request(0, max_new_tokens=4))
    (submission,) = shard.engine.submissions
    submission.emit("bcd", end=FinishReason.LENGTH)
    (generation,) = (await shard.decode(batch)).generations
    assert list(generation.tokens.texts) == ["b", "c", "d"]
    assert list(generation.tokens.logprobs) == [-0.5, -0.75, -1.0]
    assert list(generation.tokens.is_special) == [False] * 3
    assert generation.generated_text.text == "abcd"
    assert generation.generated_text.generated_tokens == 4
    assert generation.generated_text.finish_reason == v3.FINISH_REASON_LENGTH
    assert not generation.generated_text.HasField("seed")


async def test_a_step_waits_for_the_first_of_its_requests_only(shard: Shard) -> None:
    batch = await shard.started(0, request(0), request(1))
    call = shard.decode(batch)
    shard.engine.submissions[1].emit("b")
    answer = await call
    assert texts(answer) == {1: ["b"]}
    assert list(answer.batch.request_ids) == [0, 1]


async def test_a_finished_request_leaves_its_batch_by_itself(shard: Shard) -> None:
    batch = await shard.started(0, request(0, "xy", max_new_tokens=10), request(1, "z", max_new_tokens=20))
    assert batch.max_tokens == 33
    call = shard.decode(batch)
    shard.engine.submissions[0].emit(end=FinishReason.STOP)
    answer = await call
    assert answer.batch == v3.CachedBatch(id=0, request_ids=[1], size=1, max_tokens=21, current_tokens=1)


async def test_new_requests_join_the_cached_batch_under_its_id(shard: Shard) -> None:
    batch = await shard.started(3, request(3))
    call = shard.prefill(4, [request(4, "four"), request(5, "fives")], batch)
    await shard.engine.submitted(3)
    shard.engine.submissions[0].emit("b")
    answer = await call
    assert texts(answer) == {3: ["b"]}
    assert answer.batch.id == 3
    assert list(answer.batch.request_ids) == [3, 4, 5]
    assert answer.batch.current_tokens == 1 + 4 + 5
    assert answer.HasField("concat_ns")
    shard.engine.submissions[2].emit("c")
    assert texts(await shard.decode(answer.batch)) == {5: ["c"]}


async def test_batches_of_a_decode_become_the_first_one(plain_shard: Shard) -> None:
    old = await plain_shard.started(3, request(3))
    new = await plain_shard.started(4, request(4))
    call = plain_shard.decode(old, new)
    plain_shard.engine.submissions[1].emit("b")
    answer = await call
    assert answer.batch.id == 3
    assert list(answer.batch.request_ids) == [3, 4]
    assert answer.HasField("concat_ns")
    assert len(plain_shard.server.core.batches) == 1


async def test_new_prompts_do_not_hold_up_those_that_run(plain_shard: Shard) -> None:
    """Without chunking the router asks for old tokens only after the new prompts' answer."""
    old = await plain_shard.started(3, request(3))
    call = plain_shard.prefill(4, [request(4)])
    await plain_shard.engine.submitted(2)
    plain_shard.engine.submissions[0].emit("b")
    answer = await call
    assert list(answer.generations) == []
    assert list(answer.batch.request_ids) == [4]
    assert texts(await plain_shard.decode(old, answer.batch)) == {3: ["b"]}


async def test_a_decode_does_not_answer_for_other_batches(plain_shard: Shard) -> None:
    first = await plain_shard.started(0, request(0))
    await plain_shard.started(1, request(1))
    call = plain_shard.decode(first)
    plain_shard.engine.submissions[1].emit("b")
    await until(plain_shard.server.core.batches.get(1).has_news)
    assert not call.done()
    plain_shard.engine.submissions[0].emit("c")
    assert texts(await call) == {0: ["c"]}


async def test_no_more_than_the_answer_is_sent_after_its_end(shard: Shard) -> None:
    batch = await shard.started(0, request(0), request(1))
    shard.engine.submissions[0].emit("b", end=FinishReason.LENGTH)
    answer = await shard.decode(batch)
    shard.engine.submissions[1].emit("c")
    assert texts(await shard.decode(answer.batch)) == {1: ["c"]}


async def test_alternatives_come_with_each_token(shard: Shard) -> None:
    batch = await shard.started(0, request(0, top_n_tokens=2))
    shard.engine.submissions[0].emit("bc")
    (generation,) = (await shard.decode(batch)).generations
    assert [list(tokens.logprobs) for tokens in generation.top_tokens] == [[-0.5, -1.5], [-0.75, -1.75]]
    assert [tokens.ids[0] for tokens in generation.top_tokens] == list(generation.tokens.ids)
    assert all(list(tokens.is_special) == [False, False] for tokens in generation.top_tokens)


async def test_sampled_answers_name_their_seed(shard: Shard) -> None:
    call = shard.prefill(0, [request(0, parameters={"do_sample": True, "seed": 2**63 + 5})])
    (submission,) = await shard.engine.submitted(1)
    assert submission.sampling.seed == 2**63 + 5
    submission.emit("a", end=FinishReason.STOP, stop="a")
    (generation,) = (await call).generations
    assert generation.generated_text.seed == 2**63 + 5
    assert generation.generated_text.finish_reason == v3.FINISH_REASON_STOP_SEQUENCE


async def test_the_time_a_step_took_is_in_its_parts(shard: Shard) -> None:
    call = shard.prefill(0, [request(0)])
    (submission,) = await shard.engine.submitted(1)
    submission.emit("a")
    answer = await call
    assert 0 < answer.forward_ns < answer.total_ns
    assert answer.forward_ns + answer.decode_ns == answer.total_ns
    assert not answer.HasField("concat_ns")


async def test_the_liveness_prefill_leaves_nothing(shard: Shard) -> None:
    batch = await shard.started(0, request(0))
    decoding = shard.decode(batch)
    call = shard.prefill(LIVENESS, [request(LIVENESS, "liveness", truncate=1, max_new_tokens=1)])
    probe = (await shard.engine.submitted(2))[1]
    assert probe.prompt == "s"
    probe.emit("x", end=FinishReason.LENGTH)
    answer = await call
    assert answer.generations[0].generated_text.text == "x"
    assert not answer.HasField("batch")
    assert shard.held_requests == [0]
    assert not decoding.done()
    shard.engine.submissions[0].emit("b")
    assert texts(await decoding) == {0: ["b"]}


async def test_the_liveness_prefill_waits_for_its_own_token(plain_shard: Shard) -> None:
    await plain_shard.started(0, request(0))
    plain_shard.engine.submissions[0].emit("b")
    await until(plain_shard.server.core.batches.get(0).has_news)
    call = plain_shard.prefill(LIVENESS, [request(LIVENESS, "liveness", max_new_tokens=1)])
    (await plain_shard.engine.submitted(2))[1].emit("x", end=FinishReason.LENGTH)
    assert texts(await call) == {LIVENESS: ["x"]}


async def test_a_liveness_prefill_that_is_given_up_is_forgotten(shard: Shard) -> None:
    call = shard.prefill(LIVENESS, [request(LIVENESS, "liveness", max_new_tokens=1)])
    (probe,) = await shard.engine.submitted(1)
    call.cancel()
    await until(lambda: probe.aborted)
    assert shard.held_requests == []


@pytest.mark.parametrize("enabled", [True, False])
async def test_log_probabilities_of_the_prompt_only_where_they_are_enabled(
    tmp_path: Path, enabled: bool
) -> None:
    async with running_shard(tmp_path, prefill_logprobs=enabled) as shard:
        call = shard.prefill(0, [request(0, "abc", prefill_logprobs=True)])
        (submission,) = await shard.engine.submitted(1)
        submission.emit("d")
        (generation,) = (await call).generations
        assert generation.HasField("prefill_tokens") == enabled
        if enabled:
            first, *others = generation.prefill_tokens.logprobs
            assert math.isnan(first)
            assert others == [-1.0, -1.0]
            assert list(generation.prefill_tokens.texts) == ["a", "b", "c"]
