"""In the dtype of the machine (bfloat16 shows any difference in rounding): an answer does not depend on its company."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from pageport.core import Engine, EngineRequest, SamplingParams, parse_engine_config

NUM_PROMPTS = 24
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def engine(demo_model: Path) -> Engine:
    return Engine(parse_engine_config({"model": demo_model, "kv_cache_memory_bytes": 1 << 29}))


def answers(
    engine: Engine, requests: list[tuple[tuple[int, ...], SamplingParams]], order: list[int]
) -> list[list[int]]:
    """Answers by request, all submitted together in an order."""
    tokens: list[list[int]] = [[] for _ in requests]
    for index in order:
        prompt, params = requests[index]
        engine.add_request(EngineRequest(str(index), prompt, params, time.monotonic(), params.seed or 0))
    while engine.has_work:
        for output in engine.step():
            tokens[int(output.request_id)] += output.token_ids
    return tokens


def test_greedy_and_seeded_answers_are_the_same_alone_and_in_any_batch(engine: Engine) -> None:
    rng = random.Random(5)
    requests = [
        (
            # Lengths around the kernels' tile of 128 and beyond the step's budget of 512.
            tuple(
                rng.choices(range(1000, 40000), k=rng.choice([1, 5, 60, 127, 128, 129, 200, 257, 385, 600]))
            ),
            SamplingParams(temperature=float(index % 2), seed=index, max_tokens=NUM_TOKENS, ignore_eos=True),
        )
        for index in range(NUM_PROMPTS)
    ]
    alone = [answers(engine, [request], [0])[0] for request in requests]
    forward = list(range(NUM_PROMPTS))
    assert answers(engine, requests, forward) == alone
    assert answers(engine, requests, forward[::-1]) == alone
    assert engine.stats().peak_running == NUM_PROMPTS


def test_neither_preemption_nor_the_prefix_cache_shows_in_an_answer(engine: Engine, demo_model: Path) -> None:
    """A pool for a few requests at a time, prompts with common beginnings, all of them asked twice."""
    rng = random.Random(6)
    shared = rng.choices(range(1000, 40000), k=300)
    requests = [
        (
            (
                *shared[: rng.choice([0, 100, 128, 129, 160, 200, 250, 256, 300])],
                *rng.choices(range(1000, 40000), k=rng.randint(1, 90)),
            ),
            SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
        )
        for _ in range(12)
    ]
    undisturbed = [answers(engine, [request], [0])[0] for request in requests]
    block_bytes = 16 * 2 * 30 * 3 * 64 * 2
    small = Engine(
        parse_engine_config(
            {"model": demo_model, "kv_cache_memory_bytes": 70 * block_bytes, "watermark": 0.0}
        )
    )
    order = list(range(len(requests)))
    for _ in range(2):
        assert answers(small, requests, order) == undisturbed
        small.check_integrity()
    stats = small.stats()
    assert stats.num_preemptions > 0
    assert stats.prefix_cache_hits > 0
