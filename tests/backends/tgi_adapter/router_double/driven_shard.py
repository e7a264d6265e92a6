"""The real shard on a real socket, and the double as its router."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from double import RouterDouble, ShardFailed, Stream
from scripted_engine import Script, ScriptedEngine
from start_up import Flags, start
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.pb import generate_v2_pb2, generate_v3_pb2
from pageport.backends.tgi_adapter.pb.generate_v2_pb2_grpc import TextGenerationServiceStub as V2Stub
from pageport.backends.tgi_adapter.pb.generate_v3_pb2_grpc import TextGenerationServiceStub as V3Stub
from pageport.backends.tgi_adapter.shard.server import ShardServer
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import EngineClientProtocol, RequestOutput


class Calls:
    """A gRPC stub whose errors are the double's; what must never fail ends the test."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)

        async def call(request: Any) -> Any:
            try:
                return await method(request, timeout=20)
            except grpc.aio.AioRpcError as error:
                if name not in ("Prefill", "Decode", "Warmup"):
                    raise AssertionError(f"{name} must never fail: {error.details()}") from error
                raise ShardFailed(error.details()) from None

        return call


class NamedEngine(ScriptedEngine):
    """Plays to each client its own script: a prompt begins with its client's name and a colon."""

    def __init__(self, tokenizer: Tokenizer, scripts: Mapping[str, Script], **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self._scripts = scripts

    async def submit(self, prompt: Any, sampling: Any, **options: Any) -> AsyncIterator[RequestOutput]:
        name = self._tokenizer.decode(prompt).partition(":")[0]
        self.play(self._scripts.get(name))
        async for output in super().submit(prompt, sampling, **options):
            yield output


def messages(v2: bool) -> Any:
    return generate_v2_pb2 if v2 else generate_v3_pb2


@asynccontextmanager
async def serving(
    engine: EngineClientProtocol, tokenizer: Tokenizer, *, v2: bool = False, chunking: bool = True
) -> AsyncIterator[tuple[Any, ShardServer]]:
    """The calls of a running shard."""
    with tempfile.TemporaryDirectory(prefix="shard-") as folder:
        prefix = str(Path(folder) / "s")
        server = ShardServer(engine, tokenizer, ShardSettings(prefix, support_chunking=chunking))
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix://{prefix}-0") as channel:
                yield Calls((V2Stub if v2 else V3Stub)(channel)), server  # type: ignore[no-untyped-call]
        finally:
            await server.stop()


@asynccontextmanager
async def driven(
    engine: EngineClientProtocol,
    tokenizer: Tokenizer,
    flags: Flags | None = None,
    *,
    v2: bool = False,
    chunking: bool = True,
    prefix_caching: bool = False,
) -> AsyncIterator[RouterDouble]:
    """A double that drives a shard over an engine. At the end, neither of them holds anything.

    Args:
        prefix_caching: the router keeps a cache that the shard has not asked for, and claims what it believes.
    """
    async with serving(engine, tokenizer, v2=v2, chunking=chunking) as (calls, server):
        limits = await start(messages(v2), calls, flags or Flags())
        limits = replace(limits, prefix_caching=prefix_caching)
        double = RouterDouble(messages(v2), calls, limits, tokenizer)
        loop = asyncio.create_task(double.run())
        # Whatever the double finds wrong ends the test at once.
        watched = asyncio.current_task()
        loop.add_done_callback(lambda task: task.cancelled() or watched is None or watched.cancel())
        try:
            yield double
            async with asyncio.timeout(20):
                await double.idle.wait()
                while len(server.core.batches):
                    await asyncio.sleep(0.002)
            if double.line.allocator is not None:
                assert double.line.allocator.num_free == limits.pool // limits.block_size - 1
        finally:
            if loop.done():
                loop.result()
            loop.cancel()


async def finished(streams: list[Stream]) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*(stream.done.wait() for stream in streams))


async def let_go(engine: ScriptedEngine) -> None:
    """The engine hears of aborted requests a moment later."""
    async with asyncio.timeout(10):
        while engine.num_running:
            await asyncio.sleep(0.002)
