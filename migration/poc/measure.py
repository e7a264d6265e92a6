"""One entry under the load: loaded alone, warmed up, measured, unloaded."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from tritonclient.grpc import aio as grpc

from pageport.migration.poc.kv_sampler import KVTimeline, Read, sample_kv
from pageport.migration.poc.load import Answer, Ask, LoadResult, run_load
from pageport.migration.poc.workload import LoadRequest

_SAMPLE_SECONDS = 0.25
_LOAD_MODEL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the server listens: `host:port` for gRPC, a whole URL for the metrics page."""

    grpc: str
    metrics: str


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to serve the model.

    Attributes:
        entry: the model's name at the server.
        title: how people call it.
        ask: sends one request to it.
        read: finds its KV figures in the server's metrics.
    """

    entry: str
    title: str
    ask: Ask
    read: Read


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one variant showed under the load."""

    variant: Variant
    result: LoadResult
    kv: KVTimeline


@contextlib.asynccontextmanager
async def loaded(client: grpc.InferenceServerClient, entry: str) -> AsyncIterator[None]:
    """Load an entry for the time of a block, so that whatever is not measured is not even there."""
    await client.load_model(entry, client_timeout=_LOAD_MODEL_SECONDS)
    try:
        yield
    finally:
        await client.unload_model(entry)
        await _gone(client, entry)


async def _gone(client: grpc.InferenceServerClient, entry: str) -> None:
    """Unloading goes on after the call has returned; wait until the entry's processes have ended."""
    async with asyncio.timeout(_LOAD_MODEL_SECONDS):
        while True:
            index = await client.get_model_repository_index(as_json=True)
            states = [m.get("state") for m in index.get("models", []) if m["name"] == entry]
            if not set(states) & {"READY", "UNLOADING", "LOADING"}:
                return
            await asyncio.sleep(0.1)


async def warm_up(ask: Ask, request: LoadRequest, timeout_s: float) -> float:
    """Ask once and give the seconds it took.

    Raises:
        RuntimeError: the entry does not answer as asked.
    """
    result = await run_load(ask, [request], concurrency=1, timeout_s=timeout_s)
    if result.failures:
        answer = result.failures[0]
        wrong = f"{answer.num_tokens} tokens instead of {request.output_tokens}"
        raise RuntimeError(f"the warm-up request failed: {answer.error or wrong}")
    return result.seconds


async def measure(
    variant: Variant,
    load: list[LoadRequest],
    endpoints: Endpoints,
    *,
    concurrency: int,
    timeout_s: float,
    on_answer: Callable[[Answer], None],
) -> Measurement:
    """Send the load to an entry that is loaded and warm, and watch its KV cache meanwhile."""
    kv = KVTimeline()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is on this machine

    def fetch() -> str:
        with direct.open(endpoints.metrics, timeout=10.0) as page:
            text: str = page.read().decode()
        return text

    sampler = asyncio.create_task(sample_kv(fetch, variant.read, variant.entry, kv, _SAMPLE_SECONDS))
    try:
        result = await run_load(
            variant.ask, load, concurrency=concurrency, timeout_s=timeout_s, on_answer=on_answer
        )
    finally:
        sampler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampler
    return Measurement(variant, result, kv)
