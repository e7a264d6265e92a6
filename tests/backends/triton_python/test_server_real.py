"""The whole way with a real model: Triton, the stub, the engine's process and back."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.grpc.aio as grpc_aio
from triton_harness import Answer, Harness, read_stream, until

from pageport.backends.triton_python.contract import ContractName
from pageport.backends.triton_python.repository import write_entry
from pageport.backends.triton_python.server import TritonServer
from pageport.core import EngineClient, SamplingParams, parse_engine_config

pytestmark = [pytest.mark.server, pytest.mark.real_model]

ENTRY = "demo"
NUM_TOKENS = 48  # of each stream that is killed
ENGINE = {"max_num_seqs": 32, "max_model_len": 512, "kv_cache_memory_bytes": 200_000_000, "dtype": "float32"}
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was",
    "Water boils at a temperature of",
    "The three primary colours are",
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Harness]:
    repository = tmp_path_factory.mktemp("real") / "models"
    write_entry(repository, ENTRY, str(demo_model), ContractName.VLLM, engine=ENGINE)
    with TritonServer(repository, ready_timeout=180.0, stop_timeout=10.0) as server:
        yield Harness(server)


def inputs(prompt: str, **sampling: Any) -> dict[str, Any]:
    values = {"temperature": 0, "max_tokens": 12, **sampling}
    return {"text_input": prompt, "stream": True, "sampling_parameters": json.dumps(values)}


def engine_process(server: TritonServer) -> psutil.Process:
    (engine,) = (
        child
        for child in psutil.Process(server.pid).children(recursive=True)
        if "pageport.core.engine_process" in child.cmdline()
    )
    return engine


async def ask_all(
    harness: Harness, requests: list[dict[str, Any]], answers: list[Answer] | None = None
) -> list[Answer]:
    """All at once; `answers` are filled as responses come."""
    answers = answers or [Answer() for _ in requests]
    async with grpc_aio.InferenceServerClient(harness.server.grpc_url) as client:
        return await asyncio.gather(
            *(
                read_stream(client, ENTRY, request, answer=answer)
                for request, answer in zip(requests, answers, strict=True)
            )
        )


async def test_streamed_text_is_the_engines_text(real: Harness, demo_model: Path) -> None:
    answers = await ask_all(real, [inputs(prompt) for prompt in PROMPTS])
    client = EngineClient(parse_engine_config({**ENGINE, "model": demo_model}))
    await client.start()
    try:
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            params = SamplingParams(temperature=0, max_tokens=12)
            expected = "".join([output.text async for output in client.submit(prompt, params)])
            assert (answer.error, answer.text) == (None, expected)
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("prompt", "sampling", "field"),
    [
        ("word " * 600, {}, "prompt"),
        ("hello", {"max_tokens": 10_000}, "max_tokens"),
        ("hello", {"n": 64}, "n:"),
        ("hello", {"stop_token_ids": [10**7]}, "stop_token_ids"),
    ],
)
async def test_what_the_engine_refuses_is_named(
    real: Harness, prompt: str, sampling: dict[str, Any], field: str
) -> None:
    (answer,) = await ask_all(real, [inputs(prompt, **sampling)])
    assert answer.error is not None
    assert field in answer.error


async def test_200_streams_with_cancels_and_disconnects_leave_no_block(real: Harness) -> None:
    before = real.metric("pageport_requests_finished_total", ENTRY)
    chance = random.Random(11)

    async def one(shared: grpc_aio.InferenceServerClient) -> None:
        request = inputs(chance.choice(PROMPTS), max_tokens=chance.choice([4, 8, 300]))
        stop_after = 2 if "300" in request["sampling_parameters"] else None
        if chance.random() < 0.5:
            await read_stream(shared, ENTRY, request, stop_after=stop_after)
        else:  # a connection of its own, which is closed without a word
            async with grpc_aio.InferenceServerClient(real.server.grpc_url) as client:
                await read_stream(client, ENTRY, request, stop_after=stop_after)

    async with grpc_aio.InferenceServerClient(real.server.grpc_url) as client:
        await asyncio.gather(*(one(client) for _ in range(200)))
    await real.settled(ENTRY, before + 200)


async def kill_engine(harness: Harness, answers: list[Answer], *, after: int) -> float:
    """Kill the engine once every stream has had `after` responses; seconds until something comes again."""

    def total() -> int:
        return sum(len(answer.responses) for answer in answers)

    await until(lambda: min(len(answer.responses) for answer in answers) >= after, f"{after} responses each")
    engine = engine_process(harness.server)
    engine.kill()
    killed, seen = time.monotonic(), total()
    await until(lambda: not engine.is_running(), "the engine gone")
    await until(lambda: total() > seen, "tokens again")
    return time.monotonic() - killed


async def test_ten_kills_in_the_middle_of_32_streams_change_no_text(real: Harness) -> None:
    before = real.metric("pageport_requests_finished_total", ENTRY)
    generated = real.metric("pageport_generation_tokens_total", ENTRY)
    requests = [inputs(f"{PROMPTS[k % 4]} {k},", max_tokens=NUM_TOKENS, ignore_eos=True) for k in range(32)]
    undisturbed = await ask_all(real, requests)
    stub = engine_process(real.server).ppid()
    started = time.monotonic()
    answers = [Answer() for _ in requests]
    running = asyncio.create_task(ask_all(real, requests, answers))
    pauses = [await kill_engine(real, answers, after=3 * kill) for kill in range(1, 11)]
    await running
    print(
        f"ten kills: {time.monotonic() - started:.1f} s in all; pauses {[round(pause, 1) for pause in pauses]} s"
    )
    assert [(answer.error, answer.text) for answer in answers] == [
        (None, answer.text) for answer in undisturbed
    ]
    assert len({answer.text for answer in answers}) > 16, "one another's text would show"
    assert engine_process(real.server).ppid() == stub, "the stub lives on"
    await real.settled(ENTRY, before + 64)
    assert real.metric("pageport_generation_tokens_total", ENTRY) - generated == 2 * 32 * NUM_TOKENS
