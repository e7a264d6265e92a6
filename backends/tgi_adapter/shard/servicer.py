"""The eight calls of `TextGenerationService`, in either version of the protocol."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import grpc
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.backends.tgi_adapter.shard.core import Fault, ShardCore, ShardError, StepResult
from pageport.backends.tgi_adapter.shard.health import HealthWatch
from pageport.backends.tgi_adapter.shard.incoming import NewRequest, prompt_characters, read_request
from pageport.backends.tgi_adapter.shard.outgoing import write_batch, write_generation
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.backends.tgi_adapter.shard.warmup import WarmupLimits, agree
from pageport.core import ConfigError, EngineClientProtocol

logger = logging.getLogger("pageport.tgi")

Context: TypeAlias = grpc.aio.ServicerContext

# Tokenising so many characters takes about a millisecond: more is done beside the event loop.
_MANY_CHARACTERS = 4096

# What the warm-up runs for real: its own requests would fill the whole cache to find out how large it is.
_WARMUP_TOKENS = 16
_WARMUP_ANSWER = GenerationParameters(max_new_tokens=2, seed=0, ignore_eos_token=True)

_STATUS = {
    Fault.REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    Fault.BATCH: grpc.StatusCode.NOT_FOUND,
    Fault.ENGINE: grpc.StatusCode.INTERNAL,
}


@dataclass(frozen=True, slots=True)
class Parts:
    """What the services of both versions share."""

    core: ShardCore
    engine: EngineClientProtocol
    tokenizer: Tokenizer
    settings: ShardSettings
    health: HealthWatch


class Servicer:
    """One version's service.

    Args:
        pb: the version's generated messages.
    """

    def __init__(self, parts: Parts, pb: Any) -> None:
        self._parts = parts
        self._core = parts.core
        self._pb = pb
        self._is_v3 = hasattr(pb, "InputChunk")

    async def Health(self, request: Any, context: Context) -> Any:
        problem = self._parts.health.problem()
        if problem is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, problem)
        return self._pb.HealthResponse()

    async def Info(self, request: Any, context: Context) -> Any:
        info, settings = self._parts.engine.info, self._parts.settings
        response = self._pb.InfoResponse(
            requires_padding=False,
            dtype=f"torch.{info.dtype}",
            device_type=info.device.partition(":")[0],
            speculate=0,
        )
        if self._is_v3:
            response.support_chunking = settings.support_chunking
            # The engine has a prefix cache of its own. The router's knows tokens that were never computed.
            response.use_prefix_caching = False
            response.attention_impl = "paged"
            response.block_size = settings.block_size
        return response

    async def ServiceDiscovery(self, request: Any, context: Context) -> Any:
        return self._pb.ServiceDiscoveryResponse(urls=self._parts.settings.urls)

    async def ClearCache(self, request: Any, context: Context) -> Any:
        self._core.clear(request.id if request.HasField("id") else None)
        return self._pb.ClearCacheResponse()

    async def FilterBatch(self, request: Any, context: Context) -> Any:
        response = self._pb.FilterBatchResponse()
        batch = self._core.filter(request.batch_id, frozenset(request.request_ids))
        if batch is not None:
            write_batch(response.batch, batch)
        return response

    async def Warmup(self, request: Any, context: Context) -> Any:
        """Agree on the limits, and run something small, as a test of the whole way."""
        parts = self._parts
        try:
            answer = agree(self._limits(request), parts.engine.info, parts.settings)
            if request.batch.requests:
                (first,) = await self._read(request.batch.requests[:1])
                if first.problem is not None:
                    raise ShardError(Fault.REQUEST, first.problem)
                await self._core.run_alone(
                    NewRequest(first.id, first.prompt_ids[-_WARMUP_TOKENS:], _WARMUP_ANSWER)
                )
        except ConfigError as error:
            await _abort(context, ShardError(Fault.REQUEST, str(error)))
        except ShardError as error:
            await _abort(context, error)
        response = self._pb.WarmupResponse(max_supported_total_tokens=answer.supported_tokens)
        if self._is_v3:
            response.max_input_tokens = answer.max_input_tokens
            response.max_total_tokens = answer.max_total_tokens
        return response

    async def Prefill(self, request: Any, context: Context) -> Any:
        start = time.perf_counter_ns()
        cached_id = request.cached_batch.id if self._is_v3 and request.HasField("cached_batch") else None
        requests = await self._read(request.batch.requests)
        response = self._pb.PrefillResponse()
        await self._step(self._core.prefill(request.batch.id, requests, cached_id), response, context, start)
        if cached_id is not None:
            response.concat_ns = 0
        return response

    async def Decode(self, request: Any, context: Context) -> Any:
        start = time.perf_counter_ns()
        ids = [batch.id for batch in request.batches]
        response = self._pb.DecodeResponse()
        await self._step(self._core.decode(ids), response, context, start)
        if len(ids) > 1:
            response.concat_ns = 0  # batches are only names here: joining them takes no time
        return response

    # -- private -------------------------------------------------------------------------------------------

    async def _step(
        self, work: Awaitable[StepResult], response: Any, context: Context, start_ns: int
    ) -> None:
        """Fill in the answer of a `Prefill` or `Decode`, with how long it took."""
        try:
            result = await work
        except ShardError as error:
            await _abort(context, error)
        waited_ns = time.perf_counter_ns()
        for request_id, events in result.generations:
            write_generation(response.generations.add(), request_id, events)
        if result.batch is not None:
            write_batch(response.batch, result.batch)
        end_ns = time.perf_counter_ns()
        response.forward_ns = waited_ns - start_ns
        response.decode_ns = end_ns - waited_ns
        response.total_ns = end_ns - start_ns

    async def _read(self, requests: Sequence[Any]) -> list[NewRequest]:
        """Read and tokenise requests; long texts must not hold up the other calls."""
        if sum(map(prompt_characters, requests)) > _MANY_CHARACTERS:
            return await asyncio.to_thread(self._read_now, requests)
        return self._read_now(requests)

    def _read_now(self, requests: Sequence[Any]) -> list[NewRequest]:
        parts = self._parts
        return [read_request(request, parts.tokenizer, parts.settings) for request in requests]

    def _limits(self, request: Any) -> WarmupLimits:
        if not self._is_v3:
            return WarmupLimits(
                request.max_prefill_tokens, request.max_input_length, request.max_total_tokens
            )
        return WarmupLimits(
            request.max_prefill_tokens,
            request.max_input_tokens if request.HasField("max_input_tokens") else None,
            request.max_total_tokens if request.HasField("max_total_tokens") else None,
        )


async def _abort(context: Context, error: ShardError) -> NoReturn:
    logger.log(logging.WARNING if error.fault is Fault.REQUEST else logging.ERROR, "a call fails: %s", error)
    await context.abort(_STATUS[error.fault], str(error))
    raise error  # abort has raised already
