"""To the last bit: neither found prompts nor blocks that were lost and computed again show in an answer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from engine_runs import BLOCK_BYTES, Prompt, make_engine, run
from tiny_model import save_tiny_model

from pageport.core import RequestOutput, SamplingParams

CONTEXT = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Room for several of the kernels' pieces of 128 tokens."""
    return save_tiny_model(tmp_path_factory.mktemp("long-tiny-model"), CONTEXT)


def make_requests() -> list[tuple[Prompt, SamplingParams]]:
    """Prompts of 1 to 400 tokens, most of which begin alike for a while, wherever pieces and blocks end."""
    rng = random.Random(17)
    common = rng.choices(range(256), k=400)
    requests = []
    for index, length in enumerate((1, 1, 16, 100, 128, 129, 130, 200, 250, 256, 257, 300, 384, 385, 400)):
        same = rng.choice((length, length, rng.randint(0, length)))
        prompt = (*common[:same], *rng.choices(range(256), k=length - same))
        params = SamplingParams(
            temperature=float(index % 3 == 2), seed=index, n=1 + (index % 5 == 4), max_tokens=40, ignore_eos=True,
            logprobs=2,
        )  # fmt: skip
        requests.append((prompt, params))
    return requests


def exact(outputs: list[RequestOutput]) -> list[object]:
    return [(output.token_ids, output.logprobs) for output in outputs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("block_size", [4, 16])
def test_not_one_bit_differs(model: Path, dtype: str, block_size: int) -> None:
    requests = make_requests()
    calm = make_engine(model, dtype=dtype, block_size=block_size, enable_prefix_caching=False)
    alone = [exact(run(calm, request)[0]) for request in requests]
    assert (calm.stats().num_preemptions, calm.stats().prefix_cache_hits) == (0, 0)
    width = {"float32": 1, "bfloat16": 2}[dtype]
    engine = make_engine(
        model, dtype=dtype, block_size=block_size, watermark=0.0, max_num_seqs=16, max_num_batched_tokens=256,
        kv_cache_memory_bytes=BLOCK_BYTES // 4 * 600 // width,
    )  # fmt: skip
    assert engine.info.kv_token_capacity in range(580, 601)
    for order in (requests, requests[::-1], requests):
        answers = [exact(outputs) for outputs in run(engine, *order)]
        assert answers == (alone if order is requests else alone[::-1])
    assert engine.stats().num_preemptions >= 10
    assert engine.stats().prefix_cache_hits > 1000
