"""A test double of TGI's router, from its contract: clients, rounds, the batching loop, filtering, health.

It talks to a shard through any object with the eight calls as coroutines: a gRPC stub over a real socket, or a scripted
shard in this process. What a shard may not do ends the loop with an `AssertionError`: the real router would hang.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from start_up import Limits
from tokenizers import Tokenizer
from waiting_line import ROUND, Batch, Client, Entry, WaitingLine

LIVENESS_ID = 2**64 - 1
_LENGTH = 0  # FINISH_REASON_LENGTH


class ShardFailed(Exception):
    """What a call to the shard raised, as the double's shards raise it."""


class Stream:
    """What one client gets.

    Attributes:
        asked: tokens in all.
        gone: it has closed its connection.
        text: the whole answer; None until it is there.
        error: why there is none.
        done: nothing more will come, or nobody is there to get it.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.asked = client.new
        self.gone = False
        self.events: list[tuple[int, str]] = []
        self.text: str | None = None
        self.error: str | None = None
        self.done = asyncio.Event()
        self._text_so_far = ""
        if client.leave_after == 0:
            self.leave()

    def leave(self) -> None:
        self.gone = True
        self.done.set()

    def receive(self, generation: Any) -> str | None:
        """Take what a call brought; the text of the round where that is over."""
        tokens = generation.tokens
        for token, text in zip(tokens.ids, tokens.texts, strict=True):
            self.events.append((token, text))
            if len(self.events) == self.client.leave_after:
                self.leave()
                return None
        if not generation.HasField("generated_text"):
            return None
        self._text_so_far += generation.generated_text.text
        return str(generation.generated_text.text)

    def end(self) -> None:
        self.text = self._text_so_far
        self.done.set()

    def fail(self, error: str) -> None:
        self.error = error
        self.done.set()


class RouterDouble:
    """Args: pb: the protocol's messages; shard: its calls."""

    def __init__(self, pb: Any, shard: Any, limits: Limits, tokenizer: Tokenizer) -> None:
        self._pb, self._shard, self._limits, self._tokenizer = pb, shard, limits, tokenizer
        self.line = WaitingLine(pb, limits)
        self._arrived = asyncio.Event()
        self._streams: dict[int, Stream] = {}
        self._healthy = True
        self.idle = asyncio.Event()
        self.idle.set()

    # -- clients -------------------------------------------------------------------------------------------

    def ask(self, client: Client) -> Stream:
        stream = Stream(client)
        if not self._schedule(stream, client.prompt):
            stream.fail("refused: beyond the limits")
        return stream

    def _schedule(self, stream: Stream, prompt: str) -> bool:
        """Queue a round; whether the limits allow it."""
        client, limits = stream.client, self._limits
        ids = self._tokenizer.encode(prompt, add_special_tokens=client.special).ids
        wished = limits.max_total - len(ids) if client.new is None else client.new
        stream.asked = stream.asked or wished
        new = min(wished, ROUND)
        if len(ids) > limits.max_input or len(ids) + new > limits.max_total:
            return False
        entry = Entry(
            id=self.line.number(),
            client=client,
            prompt=prompt,
            tokens=tuple(ids),
            new=new,
            has_left=lambda: stream.gone,
        )
        self._streams[entry.id] = stream
        self.line.append(entry)
        self.idle.clear()
        self._arrived.set()
        return True

    async def health(self) -> bool:
        """`GET /health`: after a failure the shard has to show that it generates."""
        pb = self._pb
        try:
            if self._healthy:
                await self._shard.Health(pb.HealthRequest())
            else:
                await self._liveness()
        except ShardFailed:
            return False
        self._healthy = True
        return True

    async def _liveness(self) -> None:
        pb, v2 = self._pb, self._limits.v2
        request = pb.Request(id=LIVENESS_ID, inputs="liveness", truncate=10 if v2 else 1)
        neutral = pb.NextTokenChooserParameters(
            temperature=1.0, top_p=1.0, typical_p=1.0, repetition_penalty=1.0
        )
        request.parameters.CopyFrom(neutral)
        request.stopping_parameters.max_new_tokens = 1
        batch = pb.Batch(id=LIVENESS_ID, size=1, max_tokens=2)
        if not v2:
            request.input_chunks.chunks.add(text="liveness")
            request.blocks.append(0)
            request.slots.append(0)
            batch.max_blocks = 1
        batch.requests.append(request)
        answer = await self._shard.Prefill(pb.PrefillRequest(batch=batch))
        assert [generation.request_id for generation in answer.generations] == [LIVENESS_ID]
        assert not answer.HasField("batch")

    # -- the batching loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever."""
        limits = self._limits
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while batch := self.line.take(None, limits.max_batch_size, limits.prefill, limits.pool):
                entries = batch.entries
                cached = await self._prefill(batch, None, entries)
                waited = 1
                while cached is not None:
                    cached, waited = await self._turn(cached, entries, waited)
            self.idle.set()

    async def _turn(self, cached: Any, entries: dict[int, Entry], waited: int) -> tuple[Any, int]:
        """New requests if there are some, and one step of all. Then the batch that goes on, if any."""
        limits = self._limits
        batches = [cached]
        if limits.chunking:
            least, most, budget = None, None, limits.prefill - cached.current_tokens
        else:
            patient = waited < limits.max_waiting_tokens
            least = math.floor(cached.size * limits.waiting_served_ratio) if patient else None
            most = None if limits.max_batch_size is None else max(0, limits.max_batch_size - cached.size)
            budget = limits.prefill
        batch = self.line.take(least, most, budget, limits.pool - cached.max_tokens)
        if batch is not None:
            waited = 1
            if limits.chunking:
                entries |= batch.entries
                joined = await self._prefill(batch, cached, entries)
                if joined is None:
                    return None, waited
                batches = [joined]
            else:
                fresh = batch.entries
                joined = await self._prefill(batch, None, fresh)
                entries |= fresh
                batches += [] if joined is None else [joined]
        return await self._decode(batches, entries), waited + 1

    async def _prefill(self, batch: Batch, cached: Any, entries: dict[int, Entry]) -> Any:
        pb = self._pb
        request = pb.PrefillRequest(batch=batch.message)
        if cached is not None:
            request.cached_batch.CopyFrom(cached)
        try:
            answer = await self._shard.Prefill(request)
        except ShardFailed as error:
            await self._shard.ClearCache(pb.ClearCacheRequest(id=batch.message.id))
            self._fail(entries, str(error))
            return None
        return await self._settle(answer, entries)

    async def _decode(self, batches: list[Any], entries: dict[int, Entry]) -> Any:
        pb = self._pb
        try:
            answer = await self._shard.Decode(pb.DecodeRequest(batches=batches))
        except ShardFailed as error:
            for batch in batches:
                await self._shard.ClearCache(pb.ClearCacheRequest(id=batch.id))
            self._fail(entries, str(error))
            return None
        return await self._settle(answer, entries)

    async def _settle(self, answer: Any, entries: dict[int, Entry]) -> Any:
        """Hand out what a call brought, and make the shard forget who needs no more."""
        for generation in answer.generations:
            self._hand_out(generation, entries)
        if not answer.HasField("batch"):
            assert not entries, "the batch is gone, and clients still wait"
            return None
        batch = answer.batch
        assert batch.size == len(batch.request_ids)
        alive = [request_id for request_id in batch.request_ids if request_id in entries]
        assert sorted(alive) == sorted(entries), "a waiting request is not in its batch"
        if batch.size == len(entries):
            return batch
        if not alive:
            await self._shard.ClearCache(self._pb.ClearCacheRequest(id=batch.id))
            return None
        filtered = await self._shard.FilterBatch(
            self._pb.FilterBatchRequest(batch_id=batch.id, request_ids=alive)
        )
        assert filtered.HasField("batch")
        return filtered.batch

    def _hand_out(self, generation: Any, entries: dict[int, Entry]) -> None:
        tokens = generation.tokens
        assert generation.request_id in entries, "a generation for a request that is not in the call"
        assert len(tokens.ids) >= 1, "a generation without tokens"
        assert len(tokens.ids) == len(tokens.texts) == len(tokens.logprobs) == len(tokens.is_special)
        entry, stream = entries[generation.request_id], self._streams[generation.request_id]
        if stream.gone:
            self._drop(entry, entries)
            return
        text = stream.receive(generation)
        if not generation.HasField("generated_text"):
            return
        self._drop(entry, entries)
        if text is not None:
            is_short = len(stream.events) < (stream.asked or 0)
            at_limit = generation.generated_text.finish_reason == _LENGTH
            if not (is_short and at_limit and self._schedule(stream, entry.prompt + text)):
                stream.end()

    def _fail(self, entries: dict[int, Entry], error: str) -> None:
        self._healthy = False
        for entry in list(entries.values()):
            self._streams[entry.id].fail(error)
            self._drop(entry, entries)

    def _drop(self, entry: Entry, entries: dict[int, Entry]) -> None:
        del entries[entry.id]
        del self._streams[entry.id]
        self.line.free(entry)
