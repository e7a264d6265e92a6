"""The eight calls of `TextGenerationService`, in either version of the protocol."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from pageport.backends.tgi_adapter.shard.core import (
    NewRequest,
    ShardCore,
    ShardError,
    StepResult,
    WarmupLimits,
)
from pageport.backends.tgi_adapter.shard.messages import (
    cached_batch_message,
    generation_message,
    keep_small,
    parameters_of,
    prompt_of,
)
from pageport.core import InvalidRequestError

Context: TypeAlias = grpc.aio.ServicerContext


class Servicer:
    """One version's service over the core that all versions share.

    Args:
        pb: the version's generated messages.
        block_size: tokens of a block, as the router is to count them.
    """

    def __init__(self, core: ShardCore, pb: Any, block_size: int) -> None:
        self._core = core
        self._pb = pb
        self._block_size = block_size

    async def Health(self, request: Any, context: Context) -> Any:
        if not self._core.is_healthy():
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the engine is gone and will not be started again"
            )
        return self._pb.HealthResponse()

    async def Info(self, request: Any, context: Context) -> Any:
        core = self._core
        response = self._pb.InfoResponse(
            requires_padding=False, dtype=core.dtype, device_type=core.device_type, speculate=0
        )
        if "block_size" in response.DESCRIPTOR.fields_by_name:
            # The prefix cache is the engine's own; the router's would promise blocks that were never computed.
            response.support_chunking = core.settings.support_chunking
            response.use_prefix_caching = False
            response.attention_impl = "paged"
            response.block_size = self._block_size
        return response

    async def ServiceDiscovery(self, request: Any, context: Context) -> Any:
        return self._pb.ServiceDiscoveryResponse(urls=self._core.settings.urls)

    async def ClearCache(self, request: Any, context: Context) -> Any:
        self._core.batches.clear(request.id if request.HasField("id") else None)
        return self._pb.ClearCacheResponse()

    async def FilterBatch(self, request: Any, context: Context) -> Any:
        batch = self._core.filter(request.batch_id, set(request.request_ids))
        return self._pb.FilterBatchResponse(batch=cached_batch_message(self._pb, batch))

    async def Warmup(self, request: Any, context: Context) -> Any:
        first = request.batch.requests[0] if request.batch.requests else None
        response = self._pb.WarmupResponse()
        v3 = "max_input_tokens" in response.DESCRIPTOR.fields_by_name
        limits = WarmupLimits(
            request.max_prefill_tokens,
            (request.max_input_tokens if request.HasField("max_input_tokens") else None)
            if v3
            else request.max_input_length,
            (request.max_total_tokens if request.HasField("max_total_tokens") else None)
            if v3
            else request.max_total_tokens,
        )
        try:
            answer = await self._core.warm_up(limits, None if first is None else self._new_request(first))
        except ShardError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        response.max_supported_total_tokens = answer.supported_tokens
        if v3:
            response.max_input_tokens = answer.max_input_tokens
            response.max_total_tokens = answer.max_total_tokens
        return response

    async def Prefill(self, request: Any, context: Context) -> Any:
        cached = None
        if "cached_batch" in request.DESCRIPTOR.fields_by_name and request.HasField("cached_batch"):
            cached = request.cached_batch.id
        requests = [self._new_request(item) for item in request.batch.requests]
        return await self._step(
            lambda: self._core.prefill(request.batch.id, requests, cached),
            self._pb.PrefillResponse(),
            context,
            joined=cached is not None,
        )

    async def Decode(self, request: Any, context: Context) -> Any:
        ids = [batch.id for batch in request.batches]
        return await self._step(
            lambda: self._core.decode(ids), self._pb.DecodeResponse(), context, joined=len(ids) > 1
        )

    async def _step(
        self, work: Callable[[], Awaitable[StepResult]], response: Any, context: Context, *, joined: bool
    ) -> Any:
        start = time.perf_counter_ns()
        try:
            result = await work()
        except (ShardError, InvalidRequestError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        waited = time.perf_counter_ns()
        response.generations.extend(
            [generation_message(self._pb, request_id, events) for request_id, events in result.generations]
        )
        if result.batch is not None:
            response.batch.CopyFrom(cached_batch_message(self._pb, result.batch))
        keep_small(response)
        end = time.perf_counter_ns()
        response.forward_ns, response.decode_ns, response.total_ns = waited - start, end - waited, end - start
        if joined and "concat_ns" in response.DESCRIPTOR.fields_by_name:
            response.concat_ns = 0
        return response

    def _new_request(self, request: Any) -> NewRequest:
        core = self._core
        return NewRequest(
            request.id, prompt_of(request, core.tokenizer), parameters_of(request, core.settings)
        )
