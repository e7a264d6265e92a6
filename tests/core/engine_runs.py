"""Running an in-process engine on the tiny model to the end, with its invariants checked after each step."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from pageport.core import Engine, EngineRequest, RequestOutput, SamplingParams, parse_engine_config

CONTEXT, VOCAB, EOS = 96, 258, 257
BLOCK_BYTES = 4 * 2 * 2 * 2 * 8 * 4  # 4 tokens, 2 layers, keys and values, 2 heads of 8 float32

Prompt = tuple[int, ...]


def make_engine(model: Path, **arguments: Any) -> Engine:
    defaults = {
        "model": model,
        "dtype": "float32",
        "block_size": 4,
        "kv_cache_memory_bytes": 200 * BLOCK_BYTES,
    }
    return Engine(parse_engine_config({**defaults, **arguments}))


def run(engine: Engine, *requests: tuple[Prompt, SamplingParams]) -> list[list[RequestOutput]]:
    """Run requests together to the end; the merged output of each sequence of each request."""
    for number, (prompt, params) in enumerate(requests):
        engine.add_request(EngineRequest(str(number), prompt, params, time.monotonic(), params.seed or 0))
    merged: dict[tuple[int, int], RequestOutput] = {}
    while engine.has_work:
        for output in engine.step():
            key = (int(output.request_id), output.index)
            if key in merged:
                merged[key].merge(output)
            else:
                merged[key] = output
        engine.check_integrity()
    assert engine.stats().kv_blocks_used == 0
    by_request = defaultdict(list)
    for (number, _), output in sorted(merged.items()):
        by_request[number].append(output)
    return [by_request[number] for number in range(len(requests))]


def answer(engine: Engine, prompt: Prompt, **params: Any) -> RequestOutput:
    ((output,),) = run(engine, (prompt, SamplingParams(**params)))
    return output
