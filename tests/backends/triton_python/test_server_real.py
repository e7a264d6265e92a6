"""The whole way with a real model: Triton, the stub, the engine's process and back."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
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


async def ask_all(harness: Harness, requests: list[dict[str, Any]]) -> list[Answer]:
    async with grpc_aio.InferenceServerClient(harness.server.grpc_url) as client:
        return await asyncio.gather(*(read_stream(client, ENTRY, request) for request in requests))


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


async def test_killed_engine_fails_its_requests_and_comes_back(real: Harness) -> None:
    before = real.metric("pageport_requests_finished_total", ENTRY)
    requests = [inputs(PROMPTS[k % 4], max_tokens=400, ignore_eos=True) for k in range(16)]
    running = asyncio.create_task(ask_all(real, requests))
    await until(lambda: real.metric("pageport_requests_running", ENTRY) == 16, "16 running")
    os.kill(engine_process(real.server).pid, signal.SIGKILL)
    killed = asyncio.get_running_loop().time()
    answers = await running
    seconds = asyncio.get_running_loop().time() - killed
    assert ["was killed by SIGKILL" in (answer.error or "") for answer in answers] == [True] * 16
    print(f"16 requests ended {seconds:.2f} s after the engine was killed")
    (again,) = await ask_all(real, [inputs(PROMPTS[0])])
    assert again.error is None
    assert "Paris" in again.text
    await real.settled(ENTRY, before + 1)
