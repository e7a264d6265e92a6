"""Greedy answers in float32, token for token against `transformers.generate` on the real model."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch

from pageport.core import Engine, EngineRequest, SamplingParams, parse_engine_config

NUM_PROMPTS = 32
NUM_TOKENS = 64

_SUBJECTS = (
    "The history of the bicycle begins",
    "A good recipe for bread needs",
    "def fibonacci(n):",
    "In 1969, the first people",
    "Water boils at",
    "Dear Sir or Madam,",
    "The three laws of thermodynamics are",
    "Once upon a time, in a small village,",
)


def _prompts(model: Path) -> list[list[int]]:
    """Prompts of 1 to about 200 tokens: some real sentences, some strings of common tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    rng = random.Random(7)
    prompts = []
    for index in range(NUM_PROMPTS):
        words = " ".join(rng.choice(_SUBJECTS) for _ in range(1 + index // 3))
        prompts.append(tokenizer.encode(words).ids[: 1 + index * 6])
    return prompts


@pytest.fixture(scope="module")
def prompts(demo_model: Path) -> list[list[int]]:
    return _prompts(demo_model)


@pytest.fixture(scope="module")
def expected(demo_model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers answers, one prompt at a time: no padding, no batch."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32)
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=2,
        )
        answers.append(whole[0, len(prompt) :].tolist())
    return answers


def make_engine(model: Path, **arguments: object) -> Engine:
    return Engine(
        parse_engine_config(
            {
                "model": model,
                "dtype": "float32",
                "max_model_len": 512,
                "kv_cache_memory_bytes": 1 << 30,
                **arguments,
            }
        )
    )


def answer_all(
    engine: Engine, prompts: list[list[int]], order: list[int], *, arrive_together: bool
) -> list[list[int]]:
    """Answers by prompt; requests come at once, or each one some steps after the one before."""
    answers: list[list[int]] = [[] for _ in prompts]
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    waiting = list(order)
    rng = random.Random(len(order))
    while waiting or engine.has_work:
        while waiting and (arrive_together or not engine.has_work or rng.random() < 0.5):
            index = waiting.pop(0)
            engine.add_request(EngineRequest(str(index), tuple(prompts[index]), params, time.monotonic()))
        for output in engine.step():
            answers[int(output.request_id)] += output.token_ids
    engine.check_integrity()
    assert engine.stats().kv_blocks_used == 0
    return answers


def test_alone(demo_model: Path, prompts: list[list[int]], expected: list[list[int]]) -> None:
    engine = make_engine(demo_model, max_num_seqs=1)
    answers = answer_all(engine, prompts, list(range(NUM_PROMPTS)), arrive_together=True)
    assert engine.stats().peak_running == 1
    assert answers == expected


@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_all_at_once(
    demo_model: Path, prompts: list[list[int]], expected: list[list[int]], block_size: int
) -> None:
    engine = make_engine(demo_model, block_size=block_size)
    order = list(range(NUM_PROMPTS))
    assert answer_all(engine, prompts, order, arrive_together=True) == expected
    assert engine.stats().peak_running == NUM_PROMPTS


def test_in_any_arrival_order_with_small_chunks(
    demo_model: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    engine = make_engine(demo_model, max_num_batched_tokens=40)
    order = list(range(NUM_PROMPTS))
    random.Random(3).shuffle(order)
    assert answer_all(engine, prompts, order, arrive_together=False) == expected


def test_when_blocks_run_out_and_sequences_are_computed_again(
    demo_model: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    bytes_per_block = 2 * 30 * 3 * 64 * 4 * 16
    engine = make_engine(demo_model, kv_cache_memory_bytes=40 * bytes_per_block)
    order = list(range(NUM_PROMPTS))
    assert answer_all(engine, prompts, order, arrive_together=True) == expected
    assert engine.stats().num_preemptions > 0
