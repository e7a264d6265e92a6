"""A shard over an engine of the tests, and the calls that a router makes to it, over its real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from manual_engine import ManualEngine, byte_tokenizer

from pageport.backends.tgi_adapter.pb import generate_v3_pb2 as v3
from pageport.backends.tgi_adapter.pb.generate_v2_pb2_grpc import TextGenerationServiceStub as V2Stub
from pageport.backends.tgi_adapter.pb.generate_v3_pb2_grpc import TextGenerationServiceStub as V3Stub
from pageport.backends.tgi_adapter.shard.server import ShardServer
from pageport.backends.tgi_adapter.shard.settings import ShardSettings

LIVENESS = 2**64 - 1


def request(id: int, text: str = "Hello", *, pb: Any = v3, max_new_tokens: int = 100, **fields: Any) -> Any:
    """A request as the router sends it when its client asks for nothing special."""
    parameters = {
        "temperature": 1.0,
        "top_p": 1.0,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
        "seed": 7,
        **fields.pop("parameters", {}),
    }
    stopping = {"max_new_tokens": max_new_tokens, **fields.pop("stopping", {})}
    if pb is v3:
        fields = {"add_special_tokens": True, "input_chunks": {"chunks": [{"text": text}]}, **fields}
    return pb.Request(
        **{"id": id, "inputs": text, "truncate": 1024, **fields},
        parameters=pb.NextTokenChooserParameters(**parameters),
        stopping_parameters=pb.StoppingCriteriaParameters(**stopping),
    )


class Shard:
    """What tests ask of a running shard.

    Attributes:
        engine: does what the test says.
        v2, v3: the router's stubs.
    """

    def __init__(
        self, server: ShardServer, engine: ManualEngine, channel: grpc.aio.Channel, path: Path
    ) -> None:
        self.server = server
        self.engine = engine
        self.path = path
        self.v2: Any = V2Stub(channel)  # type: ignore[no-untyped-call]
        self.v3: Any = V3Stub(channel)  # type: ignore[no-untyped-call]

    def prefill(
        self, batch_id: int, requests: Sequence[Any], cached: Any = None
    ) -> asyncio.Future[v3.PrefillResponse]:
        """A call on its way."""
        batch = v3.Batch(id=batch_id, requests=requests, size=len(requests))
        return asyncio.ensure_future(
            self.v3.Prefill(v3.PrefillRequest(batch=batch, cached_batch=cached), timeout=20)
        )

    def decode(self, *batches: Any) -> asyncio.Future[v3.DecodeResponse]:
        """A call on its way."""
        return asyncio.ensure_future(self.v3.Decode(v3.DecodeRequest(batches=batches), timeout=20))

    async def filter(self, batch_id: int, *request_ids: int) -> v3.FilterBatchResponse:
        return await self.v3.FilterBatch(v3.FilterBatchRequest(batch_id=batch_id, request_ids=request_ids))

    async def clear(self, batch_id: int | None = None) -> None:
        await self.v3.ClearCache(v3.ClearCacheRequest(id=batch_id))

    async def started(self, batch_id: int, *requests: Any) -> v3.CachedBatch:
        """A batch whose requests have each brought the token `a`."""
        before = len(self.engine.submissions)
        call = self.prefill(batch_id, requests)
        for submission in (await self.engine.submitted(before + len(requests)))[before:]:
            submission.emit("a")
        answer = await call
        assert answer.HasField("batch")
        return answer.batch

    @property
    def held_requests(self) -> list[int]:
        return sorted(request_id for batch in self.server.core.batches for request_id in batch.request_ids)


@asynccontextmanager
async def running_shard(
    folder: Path, engine: ManualEngine | None = None, **settings: Any
) -> AsyncIterator[Shard]:
    engine = engine or ManualEngine(byte_tokenizer())
    shard_settings = ShardSettings(str(folder / "shard"), **settings)
    server = ShardServer(engine, engine.tokenizer, shard_settings)
    await server.start()
    path = Path(shard_settings.socket_path)
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            yield Shard(server, engine, channel, path)
    finally:
        await server.stop()


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call fails."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call was answered")


def texts(answer: Any) -> dict[int, list[str]]:
    """The pieces of text that an answer brings, by request."""
    return {generation.request_id: list(generation.tokens.texts) for generation in answer.generations}
