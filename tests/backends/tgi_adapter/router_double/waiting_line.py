"""The router's queue: who waits, and which of them make the next batch. One rule for each version of the router."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from allocators import Allocation, Allocator, RadixAllocator, SimpleAllocator
from start_up import Limits

ROUND = 1024  # tokens that the router asks a shard for at most at a time


@dataclass(frozen=True)
class Client:
    """What one client asks for.

    Attributes:
        new: tokens; None: as many as there may be.
        leave_after: events after which it closes its connection; 0: before anything comes.
    """

    prompt: str
    new: int | None
    leave_after: int | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    special: bool = True
    prefill_logprobs: bool = False


@dataclass(eq=False)
class Entry:
    """A request under its number; a long answer takes several, one after the other.

    Attributes:
        tokens: of the prompt, as the router counts them.
        new: tokens to ask for in this round.
        has_left: whether nobody waits for it any more.
    """

    id: int
    client: Client
    prompt: str
    tokens: tuple[int, ...]
    new: int
    has_left: Callable[[], bool]
    allocation: Allocation | None = None


@dataclass(frozen=True)
class Batch:
    message: Any
    entries: dict[int, Entry]


class WaitingLine:
    """
    Attributes:
        next_request, next_batch: the numbers that come next.
        believed: tokens that shards were told to be cached, in all.
    """

    def __init__(self, pb: Any, limits: Limits) -> None:
        self._pb, self._limits = pb, limits
        self._entries: deque[Entry] = deque()
        self.allocator = _allocator(limits)
        self.next_request = 0
        self.next_batch = 0
        self.believed = 0

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)

    def number(self) -> int:
        self.next_request += 1
        return self.next_request - 1

    def free(self, entry: Entry) -> None:
        """The request has ended: its blocks are free, or cached."""
        if entry.allocation is not None and self.allocator is not None:
            self.allocator.free(entry.allocation)
            entry.allocation = None

    def take(
        self, least: int | None, most: int | None, prefill_budget: int, token_budget: int
    ) -> Batch | None:
        """The next batch, or None. Nothing is lost: who does not fit stays in front.

        Args:
            least: a smaller batch is not worth it.
            prefill_budget: prompt tokens; up to the end of a block.
            token_budget: tokens of the pool that are not taken, where the router has no blocks.
        """
        if prefill_budget <= 0 or token_budget <= 0 or most == 0 or not self._entries:
            return None
        if least is not None and len(self._entries) < least:
            return None
        block_size = self._limits.block_size
        prefill_budget = -(-prefill_budget // block_size) * block_size
        message, taken = self._pb.Batch(), list[Entry]()
        count = _Count(self._limits, prefill_budget, token_budget)
        while self._entries and len(taken) != most and not count.ends_in_chunk:
            entry = self._entries.popleft()
            if entry.has_left():
                continue
            if not self._fits(entry, count):
                self._entries.appendleft(entry)
                break
            taken.append(entry)
            message.requests.append(self._request(entry, count.chunk))
        if not taken:
            return None
        if least is not None and len(taken) < least:
            for entry in reversed(taken):
                self.free(entry)
                self._entries.appendleft(entry)
            return None
        message.id, message.size = self.next_batch, len(taken)
        message.max_tokens = count.prompt_tokens + count.new_tokens
        if self.allocator is not None:
            message.max_blocks = count.max_blocks
        self.next_batch += 1
        return Batch(message, {entry.id: entry for entry in taken})

    def _fits(self, entry: Entry, count: _Count) -> bool:
        if self.allocator is None:
            return count.add(entry)
        key = None if entry.client.prefill_logprobs else entry.tokens
        allocation = self.allocator.allocate(len(entry.tokens) + entry.new + self._limits.speculate - 1, key)
        if allocation is None:
            return False
        entry.allocation = allocation
        count.max_blocks = max(count.max_blocks, len(allocation.blocks))
        if count.add_computed(len(entry.tokens) - _believed(entry)):
            return True
        self.free(entry)
        return False

    def _request(self, entry: Entry, chunk: int | None) -> Any:
        request = self._pb.Request(
            id=entry.id,
            inputs=entry.prompt,
            truncate=self._limits.max_input,
            prefill_logprobs=entry.client.prefill_logprobs,
        )
        neutral = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0}
        request.parameters.CopyFrom(
            self._pb.NextTokenChooserParameters(**{**neutral, **entry.client.parameters})
        )
        request.stopping_parameters.max_new_tokens = entry.new
        if self._limits.v2:
            return request
        request.input_chunks.chunks.add(text=entry.prompt)
        request.add_special_tokens = entry.client.special
        if entry.allocation is not None:
            request.blocks.extend(entry.allocation.blocks)
            request.slots.extend(entry.allocation.slots)
            request.cache_len = _believed(entry)
            self.believed += request.cache_len
        if chunk is not None:
            request.chunk_len = chunk
        return request


def _allocator(limits: Limits) -> Allocator | None:
    if limits.v2 or limits.padding:
        return None
    if limits.prefix_caching:
        return RadixAllocator(limits.pool, limits.block_size)
    return SimpleAllocator(limits.pool, limits.block_size, limits.window)


def _believed(entry: Entry) -> int:
    """Tokens that need no computing, as the router sees it; one is always computed."""
    assert entry.allocation is not None
    return min(entry.allocation.cached, len(entry.tokens) - 1)


@dataclass
class _Count:
    """What a batch comes to while it grows.

    Attributes:
        chunk: tokens that the last request's first piece has; None: all of them.
    """

    limits: Limits
    prefill_budget: int
    token_budget: int
    size: int = 0
    longest: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    max_blocks: int = 0
    chunk: int | None = None

    @property
    def ends_in_chunk(self) -> bool:
        return self.chunk is not None

    def add_computed(self, tokens: int) -> bool:
        """With blocks, prompt tokens to compute are all that counts. Whether they fit, or a piece of them."""
        left = self.prefill_budget - self.prompt_tokens
        if tokens <= left:
            self.prompt_tokens += tokens
            return True
        if self.limits.chunking and left > 0:
            self.chunk = left
            return True
        return False

    def add(self, entry: Entry) -> bool:
        """Without blocks, everything is counted ahead: padded to the longest prompt, or to whole blocks."""
        self.size += 1
        self.longest = max(self.longest, len(entry.tokens))
        if self.limits.padding:
            prompt_tokens, new_tokens = self.size * self.longest, self.new_tokens + entry.new
        else:
            prompt_tokens = self.prompt_tokens + self._whole_blocks(len(entry.tokens))
            new_tokens = self.new_tokens + self._whole_blocks(entry.new)
        total = prompt_tokens + new_tokens + self.limits.speculate
        if prompt_tokens > self.prefill_budget or total > self.token_budget:
            return False
        self.prompt_tokens, self.new_tokens = prompt_tokens, new_tokens
        return True

    def _whole_blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size) * self.limits.block_size
