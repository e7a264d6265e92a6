"""What the router's calls mean, whatever version of the protocol they came in."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.generation import TokenEvent, TokenSpeller
from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.backends.tgi_adapter.shard.batches import BatchStore, HeldBatch
from pageport.backends.tgi_adapter.shard.flow import RequestFlow
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import EngineClientProtocol

# The router's own request: "can you still generate?". It comes in the middle of anything and leaves nothing.
LIVENESS_ID = 2**64 - 1


class ShardError(Exception):
    """A call that cannot be answered; its text goes to the clients of every request in it."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a call brought: events by request; the batch that goes on, if any does."""

    generations: list[tuple[int, list[TokenEvent]]]
    batch: HeldBatch | None


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request as the router sent it, tokenised."""

    id: int
    prompt_ids: list[int]
    parameters: GenerationParameters


@dataclass(frozen=True, slots=True)
class WarmupLimits:
    """What the router asked for; None: it leaves the choice to us."""

    max_prefill_tokens: int
    max_input_tokens: int | None
    max_total_tokens: int | None


@dataclass(frozen=True, slots=True)
class WarmupAnswer:
    """What the router may send from now on."""

    supported_tokens: int
    max_input_tokens: int
    max_total_tokens: int


class News:
    """Wakes whoever waits for any request's next event; nothing is ever polled."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def notify(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    async def wait(self) -> None:
        if self._next is None or self._next.done():
            self._next = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._next)


class ShardCore:
    """The engine runs freely; a call waits until one of its requests has something new, and takes all that has come.

    The router's batches, blocks and slots are its bookkeeping. Here every request is the engine's own, which batches,
    allocates and preempts by itself; nothing the router claims about cached tokens is believed.
    """

    def __init__(self, engine: EngineClientProtocol, tokenizer: Tokenizer, settings: ShardSettings) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.batches = BatchStore()
        self._engine = engine
        self._speller = TokenSpeller(tokenizer)
        self._news = News()
        self._gone = False

    @property
    def supported_tokens(self) -> int:
        """Token slots that the router may give away."""
        return int(self._engine.info.kv_token_capacity * self.settings.overcommit)

    @property
    def dtype(self) -> str:
        return f"torch.{self._engine.info.dtype}"

    @property
    def device_type(self) -> str:
        return self._engine.info.device.partition(":")[0]

    def is_healthy(self) -> bool:
        """An engine that is being started again will serve what waits for it; only one that is given up is not well."""
        return not self._gone

    def engine_is_gone(self) -> None:
        """There will be no engine any more."""
        self._gone = True

    async def warm_up(self, limits: WarmupLimits, request: NewRequest | None) -> WarmupAnswer:
        """Answer the limits and run a real request, as a test of the whole way.

        Raises:
            ShardError: the limits cannot be kept, or the engine cannot generate.
        """
        answer = self._limits(limits)
        if request is not None:
            ids = request.prompt_ids[-min(len(request.prompt_ids), 16) :]
            sample = GenerationParameters(max_new_tokens=1, seed=0)
            await self._run_alone(NewRequest(request.id, ids, sample))
        return answer

    async def prefill(
        self, batch_id: int, requests: Sequence[NewRequest], cached_id: int | None
    ) -> StepResult:
        """Begin new requests, beside those of a cached batch; wait for the first event of any of them.

        Raises:
            ShardError: the cached batch is unknown, or all requests of the call failed. Both batches are dropped then.
        """
        if len(requests) == 1 and requests[0].id == LIVENESS_ID:
            return StepResult([(LIVENESS_ID, await self._run_alone(requests[0]))], None)
        batch = HeldBatch(batch_id)
        if cached_id is not None:
            cached = self.batches.take(cached_id)
            if cached is None:
                raise ShardError(f"cached_batch: there is no batch {cached_id} here")
            batch = cached
        for request in requests:
            if request.id % self.settings.world_size == self.settings.rank:
                batch.flows[request.id] = self._begin(request)
            else:
                batch.silent.add(request.id)
        return await self._collect(batch)

    async def decode(self, batch_ids: Sequence[int]) -> StepResult:
        """Wait for the next event of any request of these batches, which become one.

        Raises:
            ShardError: one of the batches is unknown, or all requests failed. All of them are dropped then.
        """
        try:
            batch = self.batches.take_all(batch_ids)
        except KeyError as error:
            raise ShardError(f"batches: there is no batch {error.args[0]} here") from None
        return await self._collect(batch)

    def filter(self, batch_id: int, request_ids: Collection[int]) -> HeldBatch:
        """Keep some requests; never fails, because the router would not survive it."""
        batch = self.batches.take(batch_id) or HeldBatch(batch_id)
        batch.keep(request_ids)
        self.batches.put(batch)
        return batch

    # -- private -------------------------------------------------------------------------------------------

    def _begin(self, request: NewRequest) -> RequestFlow:
        info = self._engine.info
        end_token = info.eos_token_ids[0] if info.eos_token_ids else 0
        flow = RequestFlow(
            request.id, request.prompt_ids, request.parameters, self._speller, end_token, self._news.notify
        )
        flow.start(self._engine)
        return flow

    async def _collect(self, batch: HeldBatch) -> StepResult:
        flows = batch.flows
        try:
            while flows and not any(flow.has_news for flow in flows.values()):
                await self._news.wait()
        except asyncio.CancelledError:
            batch.drop()
            raise
        if flows and all(flow.has_failed for flow in flows.values()):
            problems = dict.fromkeys(flow.error or "" for flow in flows.values())
            batch.drop()
            raise ShardError("; ".join(problems))
        generations = [(request_id, flow.take()) for request_id, flow in list(flows.items()) if flow.has_news]
        for request_id, _ in generations:
            if flows[request_id].is_over:
                del flows[request_id]
                if self.settings.world_size > 1:
                    batch.silent.add(request_id)  # the router has to hear the same from all ranks
        if not flows and not batch.silent:
            return StepResult(generations, None)
        self.batches.put(batch)
        return StepResult(generations, batch)

    async def _run_alone(self, request: NewRequest) -> list[TokenEvent]:
        """A request from its beginning to its end, in no batch.

        Raises:
            ShardError: it failed.
        """
        flow = self._begin(request)
        events: list[TokenEvent] = []
        try:
            while not flow.is_over:
                if flow.has_failed:
                    raise ShardError(flow.error or "")
                events += flow.take()
                if not flow.is_over:
                    await self._news.wait()
        finally:
            flow.cancel()
        return events

    def _limits(self, limits: WarmupLimits) -> WarmupAnswer:
        longest = self._engine.info.max_model_len
        supported = self.supported_tokens
        total = limits.max_total_tokens
        if total is not None and total > longest:
            raise ShardError(
                f"max_total_tokens: {total} is more than the {longest} tokens that one request may have here "
                f"(KV cache of {self._engine.info.kv_token_capacity} tokens)"
            )
        if limits.max_prefill_tokens > supported:
            raise ShardError(
                f"max_batch_prefill_tokens: {limits.max_prefill_tokens} is more than the {supported} tokens that the "
                "KV cache is good for; start with a smaller number or give the cache more memory"
            )
        total = total or min(longest, supported)
        if limits.max_input_tokens is not None:
            return WarmupAnswer(supported, limits.max_input_tokens, total)
        most = total - 1
        if not self.settings.support_chunking:  # then a prompt has to fit into one prefill
            most = min(most, limits.max_prefill_tokens)
        return WarmupAnswer(supported, most, total)
