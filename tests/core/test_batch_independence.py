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
    return Engine(parse_engine_config({"model": demo_model, "kv_cache_memory_bytes": 1 << 28}))


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
