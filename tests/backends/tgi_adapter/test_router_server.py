"""The router as a process with real connections: start, signals, an engine that is gone, clients that leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

HERE = Path(__file__).parent


@dataclass
class RouterProcess:
    process: asyncio.subprocess.Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def line(self) -> str:
        """What its engine says next, between the lines of the log."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while line := (await self.process.stdout.readline()).decode().strip():
                if line.startswith(("starting", "closed")):
                    return line
        raise AssertionError("its output has ended")

    async def ready(self) -> None:
        async with asyncio.timeout(60), httpx.AsyncClient(base_url=self.url) as client:
            while True:
                with contextlib.suppress(httpx.ConnectError):
                    if (await client.get("/health")).status_code == 200:
                        return
                await asyncio.sleep(0.02)

    async def exit_status(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def started(
    folder: Path, *, step_s: float = 0.02, start_s: float = 0.0, grace_s: float = 30.0
) -> AsyncIterator[RouterProcess]:
    port = free_port()
    arguments = (str(folder), str(port), str(step_s), str(start_s), str(grace_s))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "serve_scripted.py"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )
    try:
        router = RouterProcess(process, port)
        assert await router.line() == "starting"
        yield router
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def stream_body(tokens: int) -> dict[str, object]:
    return {"inputs": "What is Deep Learning?", "parameters": {"max_new_tokens": tokens}}


async def test_sigterm_lets_a_stream_end(demo_model: Path) -> None:
    async with started(demo_model) as router, httpx.AsyncClient(base_url=router.url, timeout=60) as client:
        await router.ready()
        async with client.stream("POST", "/generate_stream", json=stream_body(60)) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            router.process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines if line]
        assert await router.line() == "closed, 0 running"
        assert await router.exit_status() == 0
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient().get(router.url + "/health")
    events = [json.loads(line.removeprefix("data: ")) for line in [first, *rest]]
    assert [event["index"] for event in events] == list(range(1, 61))
    assert events[-1]["generated_text"] is not None


async def test_the_grace_has_an_end(demo_model: Path) -> None:
    async with started(demo_model, step_s=0.5, grace_s=1.0) as router:
        await router.ready()
        with pytest.raises(httpx.RemoteProtocolError):
            await _stream_into_sigterm(router)
        assert await router.line() == "closed, 0 running"
        assert await router.exit_status() == 0


async def _stream_into_sigterm(router: RouterProcess) -> None:
    async with (
        httpx.AsyncClient(base_url=router.url, timeout=60) as client,
        client.stream("POST", "/generate_stream", json=stream_body(1000)) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        router.process.send_signal(signal.SIGTERM)
        async for _ in lines:
            pass


async def test_a_closed_connection_ends_its_request(demo_model: Path) -> None:
    async with started(demo_model) as router, httpx.AsyncClient(base_url=router.url, timeout=60) as client:
        await router.ready()
        async with client.stream("POST", "/generate_stream", json=stream_body(1000)) as response:
            await anext(response.aiter_lines())
        async with asyncio.timeout(60):
            while "pageport_requests_running 0" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.02)
        assert 'tgi_request_failure{err="dropped"} 1' in (await client.get("/metrics")).text


async def test_an_engine_that_is_gone_ends_the_process(demo_model: Path) -> None:
    async with started(demo_model) as router, httpx.AsyncClient(base_url=router.url, timeout=60) as client:
        await router.ready()
        body = {"inputs": "die", "parameters": {"max_new_tokens": 3}}
        assert (await client.post("/generate", json=body)).status_code == 200
        assert await router.exit_status() == 1


async def test_a_signal_while_the_engine_starts(demo_model: Path) -> None:
    async with started(demo_model, start_s=600.0) as router:
        router.process.send_signal(signal.SIGTERM)
        assert await router.line() == "closed, 0 running"
        assert await router.exit_status() == 0


async def test_a_body_above_the_limit_is_answered(demo_model: Path) -> None:
    async with started(demo_model) as router, httpx.AsyncClient(base_url=router.url, timeout=60) as client:
        await router.ready()
        response = await client.post("/generate", json={"inputs": "a" * 3_000_000})
        assert response.status_code == 413
        assert "2000000" in response.text
        assert (await client.get("/health")).status_code == 200
