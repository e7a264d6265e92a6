"""`pageport tgi launcher` as users start it, with the real model: its text, ten dead engines, two thousand clients."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from pageport.core import Engine, EngineRequest, SamplingParams, load_tokenizer, parse_engine_config

STREAMS, TOKENS, KILLS = 32, 48, 10
CLIENTS, CONCURRENT = 2000, 64
PROMPTS = [
    f"Once upon a time, in the year {1900 + number}, there was a king who" for number in range(STREAMS)
]


@dataclass(frozen=True)
class Launched:
    process: subprocess.Popen[bytes]
    url: str

    @property
    def engine_pid(self) -> int | None:
        children = psutil.Process(self.process.pid).children(recursive=True)
        pids = [child.pid for child in children if "pageport.core.engine_process" in child.cmdline()]
        return pids[0] if pids else None

    def gauge(self, name: str) -> float:
        (line,) = [
            line for line in httpx.get(f"{self.url}/metrics").text.splitlines() if line.startswith(f"{name} ")
        ]
        return float(line.split()[1])


@pytest.fixture(scope="module")
def launched(demo_model: Path) -> Iterator[Launched]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        Path(sys.executable).with_name("pageport"), "tgi", "launcher", "--router", "embedded",
        "--model-id", "demo", "--hostname", "127.0.0.1", "--port", str(port),
        "--kv-cache-memory-bytes", str(2**28),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    server = Launched(process, f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 120
        while not _healthy(server.url):
            assert process.poll() is None, "the launcher ended"
            assert time.monotonic() < deadline, "the launcher did not come up"
            time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.wait()


def _healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


async def stream(
    client: httpx.AsyncClient, prompt: str, tokens: int, leave_after: int | None = None
) -> str | None:
    """A greedy answer; None where the client left before its end."""
    body = {"inputs": prompt, "parameters": {"max_new_tokens": tokens, "do_sample": False}}
    seen = 0
    async with client.stream("POST", "/generate_stream", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            event = json.loads(line[5:])
            assert "error" not in event, event
            seen += 1
            assert event["index"] == seen, "a token was lost, or came twice"
            if event["generated_text"] is not None:
                return event["generated_text"]
            if seen == leave_after:
                return None
    raise AssertionError("the stream broke off")


def client_of(server: Launched) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, limits=limits, timeout=httpx.Timeout(180))


async def nothing_is_left(server: Launched) -> None:
    deadline = time.monotonic() + 20
    while server.gauge("pageport_requests_running") or server.gauge("pageport_kv_blocks_used"):
        assert time.monotonic() < deadline, "requests or blocks are left"
        await asyncio.sleep(0.1)


def engine_texts(demo_model: Path, prompts: list[str]) -> list[str]:
    """What the engine answers by itself, each prompt alone."""
    engine = Engine(parse_engine_config({"model": demo_model, "kv_cache_memory_bytes": 2**28}))
    tokenizer = load_tokenizer(demo_model)
    texts = []
    for prompt in prompts:
        params = SamplingParams(temperature=0.0, max_tokens=TOKENS)
        ids = tuple(tokenizer.encode(prompt).ids)
        engine.add_request(EngineRequest("one", ids, params, time.monotonic()))
        texts.append("")
        while engine.has_work:
            texts[-1] += "".join(output.text for output in engine.step())
    return texts


async def test_ten_dead_engines_in_the_middle_of_32_streams_change_no_text(
    launched: Launched, demo_model: Path
) -> None:
    async with client_of(launched) as client:
        undisturbed = await asyncio.gather(*(stream(client, prompt, TOKENS) for prompt in PROMPTS))
        assert undisturbed[:3] == engine_texts(demo_model, PROMPTS[:3])
        generated = launched.gauge("pageport_generation_tokens_total")
        answers = asyncio.gather(*(stream(client, prompt, TOKENS) for prompt in PROMPTS))
        for _ in range(KILLS):
            # Again only when tokens have flowed again, so that the next kill hits streams in their middle.
            while launched.gauge("pageport_generation_tokens_total") <= generated:
                assert not answers.done(), "the streams ended before the last kill"
                await asyncio.sleep(0.02)
            pid = launched.engine_pid
            assert pid is not None
            psutil.Process(pid).kill()
            generated = launched.gauge("pageport_generation_tokens_total")
        assert await answers == undisturbed
    assert launched.process.poll() is None
    await nothing_is_left(launched)


async def test_two_thousand_clients_that_come_and_go_leave_nothing(launched: Launched) -> None:
    rng = random.Random(1)
    free = asyncio.Semaphore(CONCURRENT)
    before = psutil.Process(launched.process.pid).num_fds()

    async def one(client: httpx.AsyncClient) -> None:
        async with free:
            leave_after = rng.choice([None, None, rng.randint(1, 6)])
            await stream(client, rng.choice(PROMPTS), rng.randint(1, 12), leave_after)

    async with client_of(launched) as client:
        await asyncio.gather(*(one(client) for _ in range(CLIENTS)))
    await nothing_is_left(launched)
    assert launched.gauge("pageport_requests_waiting") == 0
    deadline = time.monotonic() + 10
    while psutil.Process(launched.process.pid).num_fds() > before + 8:
        assert time.monotonic() < deadline, "connections are left"
        await asyncio.sleep(0.1)


async def test_sigterm_lets_a_running_stream_end(launched: Launched) -> None:
    """The last test of the module: the launcher is gone after it."""
    async with client_of(launched) as client:
        (expected,) = await asyncio.gather(stream(client, PROMPTS[0], TOKENS))
        running = asyncio.create_task(stream(client, PROMPTS[0], TOKENS))
        while not launched.gauge("pageport_requests_running"):
            await asyncio.sleep(0.01)
        launched.process.send_signal(signal.SIGTERM)
        assert await running == expected
    assert await asyncio.to_thread(launched.process.wait, 20) == 0
    assert not _healthy(launched.url)
