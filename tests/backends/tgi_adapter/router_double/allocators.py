"""The router's two books of blocks: which request was given which, without and with a prefix cache.

Blocks are taken from the end of the list of free ones, and come back to its end. Block 0 is the liveness request's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(eq=False)
class Allocation:
    """What one request was given.

    Attributes:
        cached: leading tokens that the router believes to be computed.
        key: the prompt's tokens, None where it is not cached.
    """

    blocks: list[int]
    slots: list[int]
    cached: int = 0
    key: tuple[int, ...] | None = None
    path: list[_Node] = field(default_factory=list)


class Allocator(Protocol):
    def allocate(self, tokens: int, key: tuple[int, ...] | None) -> Allocation | None: ...

    def free(self, allocation: Allocation) -> None: ...

    @property
    def num_free(self) -> int: ...


def _slots(blocks: Sequence[int], block_size: int, tokens: int) -> list[int]:
    return [
        blocks[index // block_size % len(blocks)] * block_size + index % block_size for index in range(tokens)
    ]


class SimpleAllocator:
    """
    Args:
        window: no request is given more blocks than this many tokens need; its slots go round.
    """

    def __init__(self, tokens: int, block_size: int, window: int | None) -> None:
        self._block_size, self._window = block_size, window
        self._free = list(range(1, tokens // block_size))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, tokens: int, key: tuple[int, ...] | None) -> Allocation | None:
        held = tokens if self._window is None else min(tokens, self._window)
        needed = -(-held // self._block_size)
        if needed > len(self._free):
            return None
        blocks = _take(self._free, needed)
        return Allocation(blocks, _slots(blocks, self._block_size, tokens))

    def free(self, allocation: Allocation) -> None:
        self._free += allocation.blocks


def _take(free: list[int], count: int) -> list[int]:
    start = len(free) - count
    taken = free[start:]
    del free[start:]
    return taken


@dataclass(eq=False)
class _Node:
    """One block of a cached prompt."""

    block: int
    parent: _Node | None = None
    tokens: tuple[int, ...] = ()
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    users: int = 0
    used_at: int = 0


class RadixAllocator:
    """A prompt counts as cached from the moment when its allocation is given back, whether it was computed or not."""

    def __init__(self, tokens: int, block_size: int) -> None:
        self._block_size = block_size
        self._free = list(range(1, tokens // block_size))
        self._root = _Node(block=0)
        self._time = 0

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses, cached or not."""
        return len(self._free) + sum(node.users == 0 for node in self._nodes(self._root))

    def allocate(self, tokens: int, key: tuple[int, ...] | None) -> Allocation | None:
        path = [] if key is None else self._find(key)
        for node in path:
            node.users += 1
        cached = len(path) * self._block_size
        needed = -(-(tokens - cached) // self._block_size)
        if needed > len(self._free):
            self._evict(needed - len(self._free))
        if needed > len(self._free):
            self._release(path)
            return None
        blocks = [node.block for node in path] + _take(self._free, needed)
        return Allocation(blocks, _slots(blocks, self._block_size, tokens), cached, key, path)

    def free(self, allocation: Allocation) -> None:
        self._release(allocation.path)
        if allocation.key is None:
            self._free += allocation.blocks
            return
        full = len(allocation.key) // self._block_size
        known = self._find(allocation.key)
        # Somebody else has cached the same in the meantime: those copies are not needed.
        self._free += allocation.blocks[allocation.cached // self._block_size : len(known)]
        parent = known[-1] if known else self._root
        for index in range(len(known), full):
            tokens = self._block_of(allocation.key, index)
            child = _Node(allocation.blocks[index], parent, tokens, used_at=self._time)
            parent.children[tokens] = child
            parent = child
        self._free += allocation.blocks[full:]

    def _find(self, key: tuple[int, ...]) -> list[_Node]:
        """The cached blocks that a prompt begins with."""
        self._time += 1
        path: list[_Node] = []
        node = self._root
        for index in range(len(key) // self._block_size):
            child = node.children.get(self._block_of(key, index))
            if child is None:
                break
            child.used_at = self._time
            path.append(child)
            node = child
        return path

    def _block_of(self, key: tuple[int, ...], index: int) -> tuple[int, ...]:
        return key[index * self._block_size : (index + 1) * self._block_size]

    @staticmethod
    def _release(path: list[_Node]) -> None:
        for node in path:
            node.users -= 1

    def _evict(self, count: int) -> None:
        """Ends of prompts that nobody uses, the longest unused first."""
        while count > 0:
            ends = [node for node in self._nodes(self._root) if not node.children and node.users == 0]
            if not ends:
                return
            oldest = min(ends, key=lambda node: node.used_at)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.tokens]
            self._free.append(oldest.block)
            count -= 1

    def _nodes(self, node: _Node) -> list[_Node]:
        found = []
        waiting = list(node.children.values())
        while waiting:
            found.append(waiting.pop())
            waiting += found[-1].children.values()
        return found
