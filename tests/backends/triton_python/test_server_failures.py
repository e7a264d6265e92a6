"""Cancellation, disconnects, time limits and errors through a real server: each request ends, nothing leaks."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest
import tritonclient.grpc.aio as grpc_aio
from triton_harness import Harness, read_stream, until

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("!bug", "ZeroDivisionError: a bug on purpose"),
        ("!fail", "a step failed"),
        ("!die", "2 engines in a row died under this request"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_engine_errors_reach_the_client_and_end_only_its_request(
    fake: Harness, prompt: str, words: str, stream: bool
) -> None:
    inputs = {"text_input": prompt, "stream": stream}
    answer, other = await asyncio.gather(
        fake.stream("failures", inputs), fake.stream("failures", {"text_input": "!tick 5", "stream": True})
    )
    assert answer.error is not None
    assert words in answer.error
    assert (other.error, len(other.responses)) == (None, 16)
    await fake.settled("failures")


async def test_timeout_of_the_request(fake: Harness) -> None:
    answer = await fake.stream("failures", {"text_input": "!silent"}, timeout=200_000)
    assert answer.error == "timeout: not finished after 0.2 s"
    await fake.settled("failures")


async def test_cancelled_while_no_token_comes(fake: Harness) -> None:
    async with grpc_aio.InferenceServerClient(fake.server.grpc_url) as client:
        fake.sent["failures"] += 1
        task = asyncio.create_task(read_stream(client, "failures", {"text_input": "!silent", "stream": True}))
        await until(lambda: fake.metric("pageport_requests_running", "failures") == 1, "running")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await fake.settled("failures")


async def test_http_client_that_disconnects(fake: Harness) -> None:
    fake.sent["failures"] += 1
    body = b'{"text_input": "!tick 20", "stream": true, "max_tokens": 1000}'
    host, port = fake.server.http_url.split(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as connection:
        head = f"POST /v2/models/failures/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert b"200 OK" in connection.recv(4096)
    await fake.settled("failures")


async def test_many_streams_with_random_cancels_leave_nothing_behind(fake: Harness) -> None:
    chance = random.Random(7)
    async with grpc_aio.InferenceServerClient(fake.server.grpc_url) as client:

        async def one() -> None:
            fake.sent["failures"] += 1
            prompt = chance.choice(["!tick 10", "!tick 30", "w1 w2", "!bug"])
            inputs = {"text_input": prompt, "stream": True}
            stop_after = chance.choice([None, 1, 3, 9])
            await read_stream(client, "failures", inputs, stop_after=stop_after)

        await asyncio.gather(*(one() for _ in range(100)))
    await fake.settled("failures")
    answer = await fake.stream("failures", {"text_input": "w1"}, parameters={"max_tokens": 1})
    assert answer.text == "w1 a0"


async def test_figures_in_metrics(fake: Harness) -> None:
    await fake.settled("failures")
    before = fake.metrics()
    inputs = {"text_input": "!tick 20", "stream": True}
    await fake.stream("failures", inputs, parameters={"max_tokens": 5})
    await fake.settled("failures")
    labels = '{model="failures",version="1"}'
    expected = {
        "vllm:prompt_tokens_total": 2,
        "vllm:generation_tokens_total": 5,
        "pageport_generation_tokens_total": 5,
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:time_per_output_token_seconds_count": 4,
        "pageport_inter_token_latency_seconds_count": 4,
        "vllm:e2e_request_latency_seconds_count": 1,
        "vllm:request_prompt_tokens_sum": 2,
        "vllm:request_generation_tokens_sum": 5,
    }

    def grown() -> dict[str, float]:
        after = fake.metrics()
        return {name: after[name + labels] - before.get(name + labels, 0.0) for name in expected}

    await until(lambda: grown() == expected, f"{expected}")
    # Five tokens on a grid of 20 ms: the first and the last are at least 60 ms apart, less the way out.
    total = 'vllm:time_per_output_token_seconds_sum{model="failures",version="1"}'
    assert fake.metrics()[total] - before.get(total, 0.0) > 0.04
