"""The double makes the calls that TGI's router was recorded to make, in their order, for the same clients."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from double import Client, Limits, RouterDouble
from scripted_engine import Script
from stand_in import StandIn
from tokenizers import Tokenizer
from virtual_time import run_virtually

from pageport.backends.tgi_adapter.pb import generate_v3_pb2

DATA = Path(__file__).parents[3] / "data" / "tgi" / "rpc"

# Cases that depend on what the double does not have; by file and name, or by name.
LEFT_OUT = {
    "prefix-hazard-chunking: prefill fails, then the same prompt again": "decided by the router's prefix cache",
    "best_of 2": "two requests for one client",
    "completion with two prompts, streamed": "two requests for one client",
    "idle stream for 35 s: keep-alive lines": "about HTTP",
    "not streamed, client closes after 0.2 s": "about HTTP",
    "chat not streamed, client closes after 0.2 s": "about HTTP",
    "answer above 4 MiB in one message": "about the size of messages",
    "client closes while it waits in the queue behind a slow prefill": "the recording has one of its clients only",
    "client closes while its prefill runs": "its client waited for a whole answer, so nobody left",
    "client leaves in the middle of a chunked prefill": "the recording has its client leave by the clock",
    "client gone before its prefill, then the same prompt again": "the recording has one of its clients only",
    "after it": "about HTTP",
    "three of 100 tokens in a pool of 256": "the recording leaves out its middle",
}


def recorded() -> list[Any]:
    cases = []
    for file in sorted(DATA.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            case = json.loads(line)
            name = f"{file.stem}: {case['name']}"
            if case["name"] not in LEFT_OUT and name not in LEFT_OUT:
                cases.append(pytest.param(case, id=name))
    return cases


def limits_of(setting: dict[str, Any]) -> Limits:
    flags = dict(itertools.pairwise(setting["flags"]))
    info = setting["info"]
    padding = bool(info.get("requires_padding"))
    return Limits(
        prefill_tokens=int(flags.get("--max-batch-prefill-tokens", 4096)),
        total_tokens=setting["supported"],
        block_size=info.get("block_size", 16),
        chunking=bool(info.get("support_chunking")),
        padding=padding,
    )


async def calls_of(case: dict[str, Any], order: list[int], tokenizer: Tokenizer) -> list[list[Any]]:
    """What the double calls when clients of one moment come in this order."""
    limits = limits_of(case["setting"])
    scripts = [Script.parse(script) for script in case["scripts"]]
    shard = StandIn(
        generate_v3_pb2, tokenizer, scripts,
        step_s=case["setting"]["step_s"], prune=case["setting"]["prune"], chunk_budget=limits.prefill_tokens,
        failing=failing_prefills(case["calls"]),
    )  # fmt: skip
    double = RouterDouble(generate_v3_pb2, shard, limits, tokenizer)
    loop = asyncio.create_task(double.run())
    waiting = []
    asked = [
        case["clients"][index] for index in order if case["clients"][index]["path"].startswith("/generate")
    ]
    for number, entry in enumerate(asked):
        await asyncio.sleep(max(0.0, entry["at"] + 1e-4 * number - asyncio.get_running_loop().time()))
        new = entry["parameters"].get("max_new_tokens")
        waiting.append(Client(entry["prompt"], new, entry["leave_after"]))
        double.ask(waiting[-1])
    await asyncio.gather(*(client.done.wait() for client in waiting))
    await asyncio.sleep(1.0)
    loop.cancel()
    return shard.calls


def failing_prefills(calls: list[list[Any]]) -> frozenset[int]:
    prefills = [call for call in calls if call[0] == "Prefill"]
    return frozenset(number for number, call in enumerate(prefills) if call[-1])


def normal(calls: list[list[Any]], *, cached: bool) -> list[list[Any]]:
    """Batches and requests numbered in the order in which they appear.

    Args:
        cached: the router has a prefix cache, which the double has not: the prompt tokens to compute are not compared.
    """
    batches: dict[int, int] = {}
    requests: dict[int, int] = {}

    def batch(number: int) -> int:
        return batches.setdefault(number, len(batches))

    def request(number: int) -> int:
        return requests.setdefault(number, len(requests))

    result: list[list[Any]] = []
    for call in calls:
        match call:
            case ["Prefill", number, items, max_tokens, joined, failed]:
                old = None if joined is None else batch(joined)
                new = [[request(one), chunk] for one, chunk in items]
                result.append(["Prefill", batch(number), new, None if cached else max_tokens, old, failed])
            case ["Decode", items, failed]:
                named = [[batch(number), [request(one) for one in ids]] for number, ids in items]
                result.append(["Decode", named, failed])
            case ["FilterBatch", number, ids]:
                result.append(["FilterBatch", batch(number), [request(one) for one in ids]])
            case ["ClearCache", number]:
                result.append(["ClearCache", batch(number)])
    return result


@pytest.mark.parametrize("case", recorded())
def test_the_double_calls_what_the_router_called(case: dict[str, Any], tokenizer: Tokenizer) -> None:
    cached = bool(case["setting"]["info"].get("use_prefix_caching"))
    expected = normal(case["calls"], cached=cached)
    attempts = []
    # Clients of one moment reached the router in an order that the recording does not say.
    for order in itertools.permutations(range(len(case["clients"]))):
        moments = [case["clients"][index]["at"] for index in order]
        if moments == sorted(moments):
            attempts.append(normal(run_virtually(calls_of(case, list(order), tokenizer)), cached=cached))
    closest = max(attempts, key=lambda calls: sum(a == b for a, b in zip(calls, expected, strict=False)))
    assert closest == expected
