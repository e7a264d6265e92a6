"""The physical KV blocks: who is free, and how many tables name each one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class BlockPool:
    """A fixed set of block ids with reference counts; every operation is O(1) per block.

    A block is free (count 0) or held by as many block tables as its count says. A block held more than once
    must not be written; see `KVManager.append` for copy-on-write.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        # Last in, first out: a block just freed is likely still in the CPU's caches, and memory that no
        # request ever needed is never touched. Low ids go out first.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference. The caller has checked `num_free`."""
        if count > len(self._free):
            raise RuntimeError(f"{count} blocks asked for, {len(self._free)} free")
        if count == 0:
            return []
        taken = self._free[-count:][::-1]
        del self._free[-count:]
        for block in taken:
            self._ref_counts[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of these held blocks."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                raise RuntimeError(f"block {block} is free and cannot be shared")
            self._ref_counts[block] += 1

    def release(self, blocks: Sequence[int]) -> list[int]:
        """Drop one reference from each block; returns those that became free by it."""
        freed = []
        for block in reversed(blocks):
            if self._ref_counts[block] == 0:
                raise RuntimeError(f"block {block} is already free")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                freed.append(block)
        self._free += freed
        return freed

    def check_integrity(self, held: Iterable[int]) -> None:
        """Assert that free list and counts agree with `held`: the ids in all tables, one entry a reference."""
        counts = [0] * self.num_blocks
        for block in held:
            counts[block] += 1
        assert counts == self._ref_counts, "reference counts differ from the block tables"
        free = set(self._free)
        assert len(free) == len(self._free), "a block is in the free list twice"
        assert free == {block for block, count in enumerate(counts) if count == 0}, "free list is wrong"
