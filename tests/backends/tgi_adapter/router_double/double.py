"""A test double of TGI's router, from its contract: start-up, queue, batching loop, filtering. One task drives it all.

It talks to a shard through any object with the eight calls as coroutines: a gRPC stub over a real socket, or a scripted
shard in this process.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

ROUND = 1024  # tokens that the router asks a shard for at most at a time
LIVENESS_ID = 2**64 - 1


class ShardFailed(Exception):
    """What a call to the shard raised, as the double's shards raise it."""


@dataclass(frozen=True)
class Limits:
    """What the router was started with, and what the shard answered to the warm-up."""

    prefill_tokens: int = 4096
    total_tokens: int = 16384
    waiting_served_ratio: float = 1.2
    max_waiting_tokens: int = 20
    block_size: int = 16
    chunking: bool = True
    padding: bool = False
    v2: bool = False


@dataclass(eq=False)
class Client:
    """One streaming client. `leave_after`: events after which it closes its connection; 0: while it waits."""

    prompt: str
    max_new_tokens: int
    leave_after: int | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    events: list[tuple[int, str]] = field(default_factory=list)
    text: str | None = None
    error: str | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def has_left(self) -> bool:
        return self.leave_after is not None and len(self.events) >= self.leave_after

    def receive(self, generation: Any) -> bool:
        """Take what a call brought; whether the client is still there and waits for more.

        One that has left is noticed when there is something for it.
        """
        if self.has_left:
            return False
        tokens = generation.tokens
        assert len(tokens.ids) >= 1, "a generation without tokens"
        assert len(tokens.ids) == len(tokens.texts) == len(tokens.logprobs) == len(tokens.is_special)
        for token, text in zip(tokens.ids, tokens.texts, strict=True):
            if self.has_left:
                break
            self.events.append((token, text))
        over = generation.HasField("generated_text")
        if over and not self.has_left:
            self.text = generation.generated_text.text
        if over or self.has_left:
            self.done.set()
        return not over

    def fail(self, error: str) -> None:
        self.error = error
        self.done.set()


@dataclass(eq=False)
class Entry:
    """A request in the router: a client's, under a number."""

    id: int
    client: Client
    prompt_tokens: int

    @property
    def reserved(self) -> int:
        return self.prompt_tokens + min(self.client.max_new_tokens, ROUND) - 1


class RouterDouble:
    """Args: pb: the protocol's messages; shard: its calls."""

    def __init__(self, pb: Any, shard: Any, limits: Limits, tokenizer: Tokenizer) -> None:
        self._pb, self._shard, self._limits, self._tokenizer = pb, shard, limits, tokenizer
        self._queue: deque[Entry] = deque()
        self._free_blocks = limits.total_tokens // limits.block_size - 1  # block 0 is the liveness request's
        self._held: dict[int, int] = {}
        self._requests = 0
        self._batches = 0
        self._arrived = asyncio.Event()
        self.entries: dict[int, Entry] = {}

    # -- start-up ------------------------------------------------------------------------------------------

    async def start(self, max_input_tokens: int | None = None, max_total_tokens: int | None = None) -> Any:
        """The four calls of the start-up, and the checks on their answers; the shard's warm-up answer."""
        pb = self._pb
        discovered = await self._shard.ServiceDiscovery(pb.ServiceDiscoveryRequest())
        assert discovered.urls
        await self._shard.ClearCache(pb.ClearCacheRequest())
        info = await self._shard.Info(pb.InfoRequest())
        request = pb.WarmupRequest(max_prefill_tokens=self._limits.prefill_tokens)
        request.batch.requests.append(self._warmup_request())
        if max_total_tokens is not None:
            request.max_total_tokens = max_total_tokens
        if self._limits.v2:
            request.max_input_length = max_input_tokens or 1024
        elif max_input_tokens is not None:
            request.max_input_tokens = max_input_tokens
        answer = await self._shard.Warmup(request)
        if not self._limits.v2:
            assert info.block_size >= 1
            assert max_input_tokens in (None, answer.max_input_tokens)
            assert max_total_tokens in (None, answer.max_total_tokens)
            assert answer.max_input_tokens < answer.max_total_tokens <= answer.max_supported_total_tokens
            assert self._limits.prefill_tokens <= answer.max_supported_total_tokens
        return answer

    def _warmup_request(self) -> Any:
        pb, budget = self._pb, self._limits.prefill_tokens
        text = "_test " * budget
        request = pb.Request(inputs=text, truncate=budget, prefill_logprobs=True, top_n_tokens=20)
        request.parameters.CopyFrom(
            pb.NextTokenChooserParameters(
                temperature=0.9, top_k=10, top_p=0.9, typical_p=0.9, repetition_penalty=1.2, watermark=True,
                frequency_penalty=0.1,
            )
        )  # fmt: skip
        request.stopping_parameters.CopyFrom(
            pb.StoppingCriteriaParameters(max_new_tokens=1, ignore_eos_token=True)
        )
        if not self._limits.v2:
            request.add_special_tokens = True
            request.input_chunks.chunks.add(text=text)
            request.input_chunks.chunks.add().image.mimetype = "image/jpeg;base64"
        return request

    # -- clients -------------------------------------------------------------------------------------------

    def ask(self, client: Client) -> None:
        entry = Entry(self._requests, client, len(self._tokenizer.encode(client.prompt).ids))
        self._requests += 1
        self._queue.append(entry)
        self._arrived.set()

    async def liveness(self) -> None:
        """The one-token request that follows a failure."""
        pb = self._pb
        request = pb.Request(id=LIVENESS_ID, inputs="liveness", truncate=1)
        request.parameters.CopyFrom(
            pb.NextTokenChooserParameters(temperature=1.0, top_p=1.0, typical_p=1.0, repetition_penalty=1.0)
        )
        request.stopping_parameters.max_new_tokens = 1
        batch = pb.Batch(id=LIVENESS_ID, size=1, max_tokens=2, requests=[request])
        answer = await self._shard.Prefill(pb.PrefillRequest(batch=batch))
        assert [generation.request_id for generation in answer.generations] == [LIVENESS_ID]
        assert not answer.HasField("batch")

    # -- the batching loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while (batch := self._next_batch(None, self._limits.prefill_tokens, 0)) is not None:
                cached = await self._prefill(batch, None)
                waiting = 1
                while cached is not None:
                    cached, waiting = await self._turn(cached, waiting)

    async def _turn(self, cached: Any, waiting: int) -> tuple[Any, int]:
        limits = self._limits
        batches = [cached]
        if limits.chunking:
            budget, least = limits.prefill_tokens - cached.current_tokens, None
        else:
            budget = limits.prefill_tokens
            patient = waiting < limits.max_waiting_tokens
            least = math.floor(cached.size * limits.waiting_served_ratio) if patient else None
        batch = self._next_batch(least, budget, cached.max_tokens)
        if batch is not None:
            waiting = 1
            joined = await self._prefill(batch, cached if limits.chunking else None)
            if limits.chunking:
                if joined is None:
                    return None, waiting
                batches = [joined]
            elif joined is not None:
                batches.append(joined)
        return await self._decode(batches), waiting + 1

    def _next_batch(self, least: int | None, budget: int, taken: int) -> Any:
        """New requests that fit, or None; in order of arrival, the last one cut where prompts may be."""
        limits = self._limits
        while self._queue and self._queue[0].client.has_left:
            self._queue.popleft()
        if not self._queue or (least is not None and len(self._queue) < least):
            return None
        if budget <= 0 or taken >= limits.total_tokens:
            return None
        batch, prompt_tokens = self._pb.Batch(), 0
        while self._queue and prompt_tokens < budget:
            entry = self._queue[0]
            if entry.client.has_left:
                self._queue.popleft()
                continue
            blocks = -(-entry.reserved // limits.block_size)
            left = budget - prompt_tokens
            # Prompts are cut at the ends of blocks, the last piece beyond the budget included.
            left = -(-left // limits.block_size) * limits.block_size if limits.chunking else left
            cut = entry.prompt_tokens > left
            if (cut and not limits.chunking) or blocks > self._free_blocks:
                break
            self._queue.popleft()
            self._free_blocks -= blocks
            self._held[entry.id] = blocks
            self.entries[entry.id] = entry
            batch.requests.append(self._request(entry, blocks, left if cut else None))
            prompt_tokens += min(entry.prompt_tokens, left)
            if cut:
                prompt_tokens = budget
                batch.max_tokens = 0
                break
            batch.max_tokens += entry.prompt_tokens
        if not batch.requests:
            return None
        if limits.padding:
            entries = [self.entries[request.id] for request in batch.requests]
            longest = max(entry.prompt_tokens for entry in entries)
            batch.max_tokens = sum(longest + min(entry.client.max_new_tokens, ROUND) for entry in entries)
        batch.id, batch.size = self._batches, len(batch.requests)
        self._batches += 1
        return batch

    def _request(self, entry: Entry, blocks: int, chunk: int | None) -> Any:
        pb, client = self._pb, entry.client
        request = pb.Request(id=entry.id, inputs=client.prompt, truncate=8191)
        chosen = {
            "temperature": 1.0,
            "top_p": 1.0,
            "typical_p": 1.0,
            "repetition_penalty": 1.0,
            **client.parameters,
        }
        request.parameters.CopyFrom(pb.NextTokenChooserParameters(**chosen))
        request.stopping_parameters.max_new_tokens = min(client.max_new_tokens, ROUND)
        request.stopping_parameters.stop_sequences.extend(client.stop)
        if not self._limits.v2:
            request.input_chunks.chunks.add(text=client.prompt)
            request.add_special_tokens = True
            request.blocks.extend(range(1, blocks + 1))
            if chunk is not None:
                request.chunk_len = chunk
        return request

    async def _prefill(self, batch: Any, cached: Any) -> Any:
        pb = self._pb
        request = pb.PrefillRequest(batch=batch)
        ids = {item.id for item in batch.requests}
        if cached is not None:
            request.cached_batch.CopyFrom(cached)
            ids |= set(cached.request_ids)
        try:
            answer = await self._shard.Prefill(request)
        except ShardFailed as error:
            await self._shard.ClearCache(pb.ClearCacheRequest(id=batch.id))
            self._fail(ids, str(error))
            return None
        return await self._settle(answer, ids)

    async def _decode(self, batches: list[Any]) -> Any:
        pb = self._pb
        ids = {request_id for batch in batches for request_id in batch.request_ids}
        try:
            answer = await self._shard.Decode(pb.DecodeRequest(batches=batches))
        except ShardFailed as error:
            for batch in batches:
                await self._shard.ClearCache(pb.ClearCacheRequest(id=batch.id))
            self._fail(ids, str(error))
            return None
        return await self._settle(answer, ids)

    async def _settle(self, answer: Any, ids: set[int]) -> Any:
        """Hand out what a call brought, and make the shard forget who needs no more."""
        for generation in answer.generations:
            assert generation.request_id in ids, "a generation for a request that is not in the call"
            entry = self.entries.get(generation.request_id)
            assert entry is not None, "a generation for a request that has ended"
            if not entry.client.receive(generation):
                self._drop(entry.id)
        alive = [request_id for request_id in sorted(ids) if request_id in self.entries]
        if not answer.HasField("batch"):
            assert not alive, "the batch is gone, and clients still wait"
            return None
        batch = answer.batch
        assert batch.size == len(batch.request_ids)
        assert set(alive) <= set(batch.request_ids), "a waiting request is not in its batch"
        if batch.size == len(alive):
            return batch
        if not alive:
            await self._shard.ClearCache(self._pb.ClearCacheRequest(id=batch.id))
            return None
        request = self._pb.FilterBatchRequest(batch_id=batch.id, request_ids=alive)
        filtered = await self._shard.FilterBatch(request)
        assert filtered.HasField("batch")
        return filtered.batch

    def _fail(self, ids: set[int], error: str) -> None:
        for request_id in ids & self.entries.keys():
            self.entries[request_id].client.fail(error)
            self._drop(request_id)

    def _drop(self, request_id: int) -> None:
        del self.entries[request_id]
        self._free_blocks += self._held.pop(request_id)
