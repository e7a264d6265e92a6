"""The whole engine in-process on a tiny random model: schedule, forward, sampling, text, and what ends it."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import BLOCK_BYTES, CONTEXT, EOS, VOCAB, Prompt, answer, make_engine, run

from pageport.core import (
    Engine,
    EngineRequest,
    FinishReason,
    InvalidRequestError,
    SamplingParams,
    load_tokenizer,
)


def random_prompts(count: int, longest: int = 40) -> list[Prompt]:
    rng = random.Random(count)
    return [tuple(rng.choices(range(256), k=rng.randint(1, longest))) for _ in range(count)]


@pytest.fixture
def engine(tiny_model: Path) -> Engine:
    return make_engine(tiny_model)


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)


def generate(reference: Any, prompt: Prompt, count: int) -> list[int]:
    ids = torch.tensor([prompt])
    whole = reference.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, pad_token_id=256
    )
    new: list[int] = whole[0, len(prompt) :].tolist()
    return new


# -- tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"max_num_batched_tokens": 5},
        {"max_num_seqs": 3},
        {"block_size": 1, "kv_cache_memory_bytes": 800 * BLOCK_BYTES // 4},
        {"kv_cache_memory_bytes": 26 * BLOCK_BYTES, "watermark": 0.0},
    ],
    ids=["roomy", "small chunks", "few seats", "blocks of one", "constant preemption"],
)
def test_greedy_equals_transformers(tiny_model: Path, reference: Any, arguments: dict[str, Any]) -> None:
    prompts = random_prompts(8)
    engine = make_engine(tiny_model, **arguments)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    outputs = run(engine, *((prompt, params) for prompt in prompts))
    assert [output.token_ids for (output,) in outputs] == [generate(reference, p, 20) for p in prompts]
    if "watermark" in arguments:
        assert engine.stats().num_preemptions > 0


def test_a_seeded_request_is_the_same_alone_and_in_any_batch(tiny_model: Path) -> None:
    prompts = random_prompts(6)
    params = [SamplingParams(temperature=1.0, top_p=0.9, max_tokens=15, seed=100 + i) for i in range(6)]
    requests = list(zip(prompts, params, strict=True))
    alone = [run(make_engine(tiny_model), request)[0][0].token_ids for request in requests]
    together = [output.token_ids for (output,) in run(make_engine(tiny_model), *requests)]
    assert together == alone
    squeezed = make_engine(tiny_model, max_num_batched_tokens=7, kv_cache_memory_bytes=26 * BLOCK_BYTES)
    assert [output.token_ids for (output,) in run(squeezed, *requests)] == alone
    other_seed = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=15, seed=999)
    assert run(make_engine(tiny_model), (prompts[0], other_seed))[0][0].token_ids != alone[0]


def test_n_sequences_share_the_prompt_and_draw_with_seeds_of_their_own(tiny_model: Path) -> None:
    engine = make_engine(tiny_model)
    prompt = random_prompts(1)[0] + tuple(range(10))
    (outputs,) = run(engine, (prompt, SamplingParams(n=3, temperature=1.0, max_tokens=12, seed=5)))
    assert [output.index for output in outputs] == [0, 1, 2]
    assert engine.stats().prompt_tokens == len(prompt)
    singles = [answer(engine, prompt, temperature=1.0, max_tokens=12, seed=5 + i).token_ids for i in range(3)]
    assert [output.token_ids for output in outputs] == singles
    assert len({tuple(tokens) for tokens in singles}) == 3


def test_n_sequences_hold_the_prompt_blocks_once(tiny_model: Path) -> None:
    engine = make_engine(tiny_model)
    prompt = tuple(range(42))
    engine.add_request(EngineRequest("a", prompt, SamplingParams(n=4, max_tokens=8), time.monotonic()))
    engine.step()
    assert engine.stats().kv_blocks_used == 11
    engine.step()
    # Ten full blocks are shared; each sequence has its own copy of the last, partly filled one.
    assert engine.stats().kv_blocks_used == 10 + 4
    while engine.has_work:
        engine.step()
    assert engine.stats().kv_blocks_used == 0


def test_n_under_preemption_ends_complete(tiny_model: Path) -> None:
    roomy = run(
        make_engine(tiny_model), *[(p, SamplingParams(n=3, seed=1, max_tokens=20)) for p in random_prompts(3)]
    )
    tight = make_engine(tiny_model, kv_cache_memory_bytes=26 * BLOCK_BYTES, watermark=0.0)
    outputs = run(tight, *[(p, SamplingParams(n=3, seed=1, max_tokens=20)) for p in random_prompts(3)])
    assert tight.stats().num_preemptions > 0
    assert [[o.token_ids for o in family] for family in outputs] == [[o.token_ids for o in f] for f in roomy]


# -- what ends a sequence ----------------------------------------------------------------------------------


def test_max_tokens_and_usage(engine: Engine) -> None:
    output = answer(engine, (1, 2, 3), temperature=0.0, max_tokens=7, ignore_eos=True)
    assert len(output.token_ids) == 7
    assert (output.num_prompt_tokens, output.num_output_tokens) == (3, 7)
    assert output.finish_reason is FinishReason.LENGTH and output.request_finished
    times = output.times
    assert 0 < times.arrival <= times.first_scheduled <= times.first_token <= times.finished


def test_no_max_tokens_means_up_to_the_context(engine: Engine) -> None:
    output = answer(engine, (1, 2, 3), temperature=0.0, max_tokens=None, ignore_eos=True)
    assert len(output.token_ids) == CONTEXT - 3
    assert output.finish_reason is FinishReason.LENGTH


def test_end_of_sequence_token(engine: Engine) -> None:
    always_end = {EOS: 100.0}
    output = answer(engine, (1, 2), temperature=0.0, max_tokens=9, logit_bias=always_end)
    assert output.token_ids == [EOS] and output.text == ""
    assert output.finish_reason is FinishReason.STOP and output.stop_reason is None
    output = answer(engine, (1, 2), temperature=0.0, max_tokens=9, logit_bias=always_end, ignore_eos=True)
    assert output.token_ids == [EOS] * 9 and output.finish_reason is FinishReason.LENGTH
    output = answer(engine, (1, 2), temperature=0.0, max_tokens=9, logit_bias=always_end, min_tokens=4)
    assert len(output.token_ids) == 5 and output.token_ids[-1] == EOS and EOS not in output.token_ids[:4]


def test_stop_token_ids(engine: Engine) -> None:
    free = answer(engine, (1, 2, 3), temperature=0.0, max_tokens=12, ignore_eos=True)
    stop = free.token_ids[5]
    first = free.token_ids.index(stop)
    output = answer(
        engine, (1, 2, 3), temperature=0.0, max_tokens=12, stop_token_ids=(stop,), ignore_eos=True
    )
    assert output.token_ids == free.token_ids[: first + 1]
    assert output.finish_reason is FinishReason.STOP and output.stop_reason == stop


def test_stop_strings_across_tokens(engine: Engine) -> None:
    letters = dict.fromkeys(range(65, 91), 50.0)  # keep to one-character tokens that decode to text
    free = answer(engine, (1, 2, 3), temperature=0.0, max_tokens=20, logit_bias=letters)
    stop = free.text[4:7]
    output = answer(engine, (1, 2, 3), temperature=0.0, max_tokens=20, logit_bias=letters, stop=(stop,))
    assert output.text == free.text[: free.text.index(stop)]
    assert output.finish_reason is FinishReason.STOP and output.stop_reason == stop
    kept = answer(
        engine, (1, 2, 3), temperature=0.0, max_tokens=20, logit_bias=letters, stop=(stop,),
        include_stop_str_in_output=True,
    )  # fmt: skip
    assert kept.text == output.text + stop


def test_text_is_the_decoded_tokens(engine: Engine, tiny_model: Path) -> None:
    letters = dict.fromkeys(range(65, 91), 50.0)
    output = answer(engine, (1, 2, 3), temperature=1.0, seed=3, max_tokens=20, logit_bias=letters)
    assert output.text == load_tokenizer(tiny_model).decode(output.token_ids)


def test_bad_words(engine: Engine) -> None:
    letters = dict.fromkeys(range(65, 91), 50.0)
    free = answer(engine, (1, 2, 3), temperature=0.0, max_tokens=20, logit_bias=letters).text
    word = free[3:5]
    output = answer(engine, (1, 2, 3), temperature=0.0, max_tokens=20, logit_bias=letters, bad_words=(word,))
    assert word in free and word not in output.text


# -- log-probabilities -------------------------------------------------------------------------------------


def test_logprobs_of_generated_tokens_equal_transformers(engine: Engine, reference: Any) -> None:
    prompt = (5, 6, 7, 8)
    output = answer(engine, prompt, temperature=0.0, max_tokens=6, logprobs=3, ignore_eos=True)
    assert output.logprobs is not None and len(output.logprobs) == 6
    with torch.inference_mode():
        logits = reference(torch.tensor([[*prompt, *output.token_ids]])).logits[0].float()
    expected = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    total = 0.0
    for position, token, row in zip(output.logprobs, output.token_ids, expected, strict=True):
        assert next(iter(position)) == token and position[token].rank == 1
        assert set(row.topk(3).indices.tolist()) == set(position)
        for candidate, value in position.items():
            assert value.logprob == pytest.approx(row[candidate].item(), abs=1e-4)
        total += position[token].logprob
    assert output.cumulative_logprob == pytest.approx(total)


@pytest.mark.parametrize("arguments", [{}, {"max_num_batched_tokens": 5}])
def test_logprobs_of_the_prompt_equal_transformers(
    tiny_model: Path, reference: Any, arguments: dict[str, Any]
) -> None:
    engine = make_engine(tiny_model, **arguments)
    prompt = random_prompts(1)[0] + (9, 8, 7, 6, 5, 4)
    output = answer(engine, prompt, temperature=0.0, max_tokens=2, prompt_logprobs=2)
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0].float().log_softmax(-1)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(prompt) and output.prompt_logprobs[0] is None
    for index, position in enumerate(output.prompt_logprobs[1:], start=1):
        assert position is not None
        assert next(iter(position)) == prompt[index]
        assert 2 <= len(position) <= 3
        for candidate, value in position.items():
            assert value.logprob == pytest.approx(expected[index - 1, candidate].item(), abs=1e-4)


# -- life of a request -------------------------------------------------------------------------------------


def test_abort_frees_blocks_at_once_and_others_go_on(tiny_model: Path) -> None:
    engine = make_engine(tiny_model)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    for name in ("a", "b"):
        engine.add_request(EngineRequest(name, tuple(range(20)), params, time.monotonic()))
    engine.step()
    used = engine.stats().kv_blocks_used
    (output,) = engine.abort("a")
    assert output.finish_reason is FinishReason.CANCELLED and output.request_finished
    assert engine.stats().kv_blocks_used == used // 2
    assert engine.abort("a") == [] and engine.abort("unknown") == []
    engine.check_integrity()
    finished = [output for _ in range(40) for output in engine.step() if output.request_finished]
    assert [output.request_id for output in finished] == ["b"]


def test_abort_of_waiting_and_of_unforked_requests(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, max_num_seqs=2)
    for name in ("a", "b"):
        params = SamplingParams(n=2, max_tokens=30, ignore_eos=True)
        engine.add_request(EngineRequest(name, tuple(range(20)), params, time.monotonic()))
    (waiting,) = engine.abort("b")
    assert waiting.request_finished
    engine.step()
    ended = engine.abort("a")
    assert [output.index for output in ended] == [0, 1]
    assert [output.request_finished for output in ended] == [False, True]
    assert not engine.has_work and engine.stats().kv_blocks_used == 0


@pytest.mark.parametrize(
    ("prompt", "params", "field", "words"),
    [
        ((), {}, "prompt", "is empty"),
        ((1,) * CONTEXT, {}, "prompt", "has 96 tokens; at most 95 fit"),
        ((1,), {"max_tokens": CONTEXT}, "max_tokens", "96 new tokens after 1 prompt tokens"),
        ((1,), {"max_tokens": 10**9}, "max_tokens", "1000000000"),
        ((VOCAB,), {}, "prompt", "token id 258 is outside of the vocabulary, 0 to 257"),
        ((-1,), {}, "prompt", "token id -1"),
        ((1,), {"n": 64}, "n", "64 is more than max_num_seqs, 8"),
        ((1,), {"logit_bias": {VOCAB: 1.0}}, "logit_bias", "258"),
        ((1,), {"stop_token_ids": (VOCAB,)}, "stop_token_ids", "258"),
    ],
)
def test_refuses_what_can_never_be_served(
    tiny_model: Path, prompt: Prompt, params: dict[str, Any], field: str, words: str
) -> None:
    engine = make_engine(tiny_model, max_num_seqs=8)
    with pytest.raises(InvalidRequestError, match=words) as caught:
        engine.add_request(EngineRequest("a", prompt, SamplingParams(**params), time.monotonic()))
    assert caught.value.field == field
    assert not engine.has_work


def test_a_prompt_larger_than_all_blocks_is_refused_with_the_capacity(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, kv_cache_memory_bytes=5 * BLOCK_BYTES)
    assert engine.info.max_model_len == 20
    with pytest.raises(InvalidRequestError, match=r"has 40 tokens; at most 19 fit .* KV cache of 20 tokens"):
        engine.add_request(EngineRequest("a", (1,) * 40, SamplingParams(), time.monotonic()))


def test_two_requests_with_one_id(tiny_model: Path) -> None:
    engine = make_engine(tiny_model)
    engine.add_request(EngineRequest("a", (1,), SamplingParams(), time.monotonic()))
    with pytest.raises(InvalidRequestError, match="'a' is in flight already"):
        engine.add_request(EngineRequest("a", (1,), SamplingParams(), time.monotonic()))


def test_stats_count_what_happened(tiny_model: Path) -> None:
    engine = make_engine(tiny_model)
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    run(engine, ((1, 2, 3), params), ((4, 5), params))
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.generation_tokens, stats.finished_requests) == (5, 10, 2)
    assert (stats.num_running, stats.num_waiting, stats.peak_running, stats.steps) == (0, 0, 2, 5)
    assert stats.kv_blocks_total == 200 and stats.kv_bytes_total == 200 * BLOCK_BYTES
    assert stats.peak_kv_blocks_used == 4
    assert 0 < stats.kv_waste_ratio_mean < 1
