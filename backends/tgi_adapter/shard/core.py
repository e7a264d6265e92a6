"""What the router's calls mean, whatever version of the protocol they came in."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.generation import TokenEvent, TokenSpeller
from pageport.backends.tgi_adapter.shard.batches import BatchStore, HeldBatch, UnknownBatchError
from pageport.backends.tgi_adapter.shard.flow import RequestFlow
from pageport.backends.tgi_adapter.shard.incoming import NewRequest
from pageport.backends.tgi_adapter.shard.message_size import MAX_EVENT_BYTES
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import EngineClientProtocol

logger = logging.getLogger("pageport.tgi")

# The router's own request: can the model still generate? It comes in the middle of anything and leaves nothing.
LIVENESS_ID = 2**64 - 1


class Fault(enum.Enum):
    """Whose fault it is that a call cannot be answered."""

    REQUEST = enum.auto()
    BATCH = enum.auto()
    ENGINE = enum.auto()


class ShardError(Exception):
    """A call that cannot be answered; its text goes to the clients of every request in it."""

    def __init__(self, fault: Fault, problem: str) -> None:
        super().__init__(problem)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a call brought: events by request, at least one each; and the batch that goes on, if any does."""

    generations: list[tuple[int, list[TokenEvent]]]
    batch: HeldBatch | None


class News:
    """Wakes whoever waits for the next event of any request. Nothing is polled."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event.clear()  # those who wait now are woken; those who come later wait for the next

    async def wait(self) -> None:
        await self._event.wait()


class ShardCore:
    """The engine runs freely; a call waits until one of its requests has something new, and takes all that has come.

    The router's batches are sets of requests to ask for, no more: the engine batches, allocates, caches and preempts
    by itself, and nothing that the router claims about blocks or cached tokens is believed.
    """

    def __init__(self, engine: EngineClientProtocol, tokenizer: Tokenizer, settings: ShardSettings) -> None:
        self.batches = BatchStore()
        self._engine = engine
        self._settings = settings
        self._speller = TokenSpeller(tokenizer)
        self._news = News()
        self._tasks: set[asyncio.Task[None]] = set()

    async def prefill(
        self, batch_id: int, requests: Sequence[NewRequest], cached_id: int | None
    ) -> StepResult:
        """Begin new requests, in one batch with those of a cached batch if one is named.

        Answers as soon as any request of the batch has something new; or another batch has: its clients would wait for
        these prompts otherwise, because the router asks for their tokens only after this answer.

        Raises:
            ShardError: the cached batch is unknown, a request is held already, or the only request of the batch
                failed. The cached batch and the new one are dropped.
        """
        if batch_id == LIVENESS_ID:
            return StepResult([(request.id, await self.run_alone(request)) for request in requests], None)
        with self._dropping_if_it_fails([batch_id] if cached_id is None else [batch_id, cached_id]):
            batch = self._batch_for(batch_id, requests, cached_id)
            self.batches.put(batch)
            for request in requests:
                self._add(batch, request)
            return await self._step(batch, beside_others=True)

    async def decode(self, batch_ids: Sequence[int]) -> StepResult:
        """Take what is new of these batches, which become one; waits until there is something.

        Raises:
            ShardError: one of the batches is unknown, or their only request failed. All of them are dropped.
        """
        with self._dropping_if_it_fails(batch_ids):
            if not batch_ids:
                raise ShardError(Fault.BATCH, "batches: no batch is named")
            try:
                batch = self.batches.join(batch_ids)
            except UnknownBatchError as error:
                raise ShardError(Fault.BATCH, f"batches: {error}") from None
            return await self._step(batch, beside_others=False)

    def filter(self, batch_id: int, request_ids: Collection[int]) -> HeldBatch | None:
        """Keep only these requests; None where nothing is left. Never raises: the router would not survive it."""
        try:
            batch = self.batches.get(batch_id)
        except UnknownBatchError:
            return None
        batch.keep(request_ids)
        self._news.notify()
        if batch.flows or batch.silent:
            return batch
        self.batches.forget(batch)
        return None

    def clear(self, batch_id: int | None) -> None:
        """Drop one batch; without an id, all. Never raises."""
        self.batches.drop_all(None if batch_id is None else [batch_id])
        self._news.notify()

    async def run_alone(self, request: NewRequest) -> list[TokenEvent]:
        """A request from its beginning to its end, in no batch.

        Raises:
            ShardError: it failed.
        """
        flow = self._begin(request)
        events: list[TokenEvent] = []
        try:
            while not flow.is_over:
                while not flow.has_news:
                    await self._news.wait()
                if flow.has_only_failed:
                    raise _error_of(flow)
                events += flow.take(MAX_EVENT_BYTES)[0]
        finally:
            flow.cancel()
        return events

    async def close(self) -> None:
        """Drop everything, and let the engine hear of it."""
        self.batches.drop_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- private -------------------------------------------------------------------------------------------

    @contextmanager
    def _dropping_if_it_fails(self, batch_ids: Sequence[int]) -> Iterator[None]:
        """The router gives up all requests of a call that fails, or whose caller is gone, but does not clear all of its
        batches.
        """
        try:
            yield
        except BaseException:
            self.batches.drop_all(batch_ids)
            raise

    def _batch_for(self, batch_id: int, requests: Sequence[NewRequest], cached_id: int | None) -> HeldBatch:
        """The batch that the new requests join: the cached one keeps its id. Raises ShardError."""
        try:
            batch = HeldBatch(batch_id) if cached_id is None else self.batches.get(cached_id)
        except UnknownBatchError as error:
            raise ShardError(Fault.BATCH, f"cached_batch: {error}") from None
        if not requests:
            raise ShardError(Fault.BATCH, "batch: it holds no request")
        ids = {request.id for request in requests}
        if len(ids) < len(requests) or any(request_id in batch for request_id in ids):
            raise ShardError(
                Fault.BATCH, f"batch: the request ids {sorted(ids)} are not new, or not distinct"
            )
        return batch

    def _add(self, batch: HeldBatch, request: NewRequest) -> None:
        """Of several ranks, one runs the request; the others hold its name."""
        if request.id % self._settings.world_size == self._settings.rank:
            batch.flows[request.id] = self._begin(request)
        else:
            batch.silent[request.id] = len(request.prompt_ids) + request.parameters.max_new_tokens

    def _begin(self, request: NewRequest) -> RequestFlow:
        flow = RequestFlow(request, self._speller, self._news.notify)
        task = flow.start(self._engine)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return flow

    async def _step(self, batch: HeldBatch, *, beside_others: bool) -> StepResult:
        """Wait for news, and take them. A batch without requests of this rank waits for nothing."""
        while batch.flows and not (batch.has_news() or (beside_others and self.batches.has_news())):
            await self._news.wait()
        generations = self._take(batch)
        if batch.flows or batch.silent:
            return StepResult(generations, batch)
        self.batches.forget(batch)
        return StepResult(generations, None)

    def _take(self, batch: HeldBatch) -> list[tuple[int, list[TokenEvent]]]:
        """What is new, as much as fits into one answer. Raises ShardError where all there is to say is a problem."""
        generations = []
        is_alone = len(batch.flows) == 1 and not batch.silent
        room = MAX_EVENT_BYTES
        for request_id, flow in list(batch.flows.items()):
            events, size = flow.take(room)
            room -= size
            if not events and flow.has_only_failed:
                if is_alone:
                    raise _error_of(flow)
                logger.warning("request %d ends with an error: %s", request_id, flow.problem)
                events = flow.take_problem(self._end_token)
            if events:
                generations.append((request_id, events))
            if flow.is_over:
                del batch.flows[request_id]
                if self._settings.world_size > 1:
                    batch.silent[request_id] = 0  # the router has to hear the same batch from every rank
        return generations

    @property
    def _end_token(self) -> int:
        end_tokens = self._engine.info.eos_token_ids
        return end_tokens[0] if end_tokens else 0


def _error_of(flow: RequestFlow) -> ShardError:
    return ShardError(Fault.REQUEST if flow.is_clients_fault else Fault.ENGINE, flow.problem or "")
