"""The physical KV blocks: who is free, how many tables name each one, and what is still in the free ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """A fixed set of block ids with reference counts; every operation is O(1) per block.

    A block is free (count 0) or held by as many block tables as its count says. A block held more than once
    must not be written; see `KVManager.append` for copy-on-write.

    A block may have a content digest. It keeps it when it becomes free, and can be found and held again until it is
    handed out for something else: first go blocks without content, then the one that was free for longest.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        # Free blocks without content. Last in, first out: a block just freed is likely still in the CPU's caches, and
        # memory that nothing ever needed, requests or content, is never touched. Low ids go out first.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()  # free blocks with content, oldest first
        self._digests: list[bytes | None] = [None] * num_blocks
        self._by_digest: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._free) + len(self._reusable)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference. The caller has checked `num_free`."""
        if count > self.num_free:
            raise RuntimeError(f"{count} blocks asked for, {self.num_free} free")
        if count == 0:
            return []
        taken = self._free[-count:][::-1]
        del self._free[-count:]
        while len(taken) < count:
            block, _ = self._reusable.popitem(last=False)
            self._forget_content(block)
            taken.append(block)
        for block in taken:
            self._ref_counts[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of these held blocks."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                raise RuntimeError(f"block {block} is free and cannot be shared")
            self._ref_counts[block] += 1

    def find(self, digest: bytes) -> int | None:
        """The block with this content, held or free."""
        return self._by_digest.get(digest)

    def hold(self, blocks: Iterable[int]) -> list[int]:
        """Add one reference to each of these blocks with content; returns those that were free."""
        revived = []
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._reusable[block]
                revived.append(block)
            self._ref_counts[block] += 1
        return revived

    def register(self, block: int, digest: bytes) -> None:
        """Let a held block, whose content will not change any more, be found. The first of several equal ones is."""
        if self._ref_counts[block] == 0:
            raise RuntimeError(f"block {block} is free and has no content")
        if self._digests[block] is None and digest not in self._by_digest:
            self._digests[block] = digest
            self._by_digest[digest] = block

    def release(self, blocks: Sequence[int]) -> list[int]:
        """Drop one reference from each block; returns those that became free by it."""
        freed = []
        for block in reversed(blocks):
            if self._ref_counts[block] == 0:
                raise RuntimeError(f"block {block} is already free")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                freed.append(block)
                # The last blocks of a sequence come first: nobody can use them without those before.
                if self._digests[block] is None:
                    self._free.append(block)
                else:
                    self._reusable[block] = None
        return freed

    def check_integrity(self, held: Iterable[int]) -> None:
        """Assert that free list and counts agree with `held`: the ids in all tables, one entry a reference."""
        counts = [0] * self.num_blocks
        for block in held:
            counts[block] += 1
        assert counts == self._ref_counts, "reference counts differ from the block tables"
        free = {*self._free, *self._reusable}
        assert len(free) == self.num_free, "a block is in the free lists twice"
        assert free == {block for block, count in enumerate(counts) if count == 0}, "free lists are wrong"
        assert all(self._digests[block] is None for block in self._free), "content in the wrong free list"
        assert all(self._digests[block] is not None for block in self._reusable), "reusable without content"
        found = {block: digest for digest, block in self._by_digest.items()}
        known = {block: digest for block, digest in enumerate(self._digests) if digest is not None}
        assert found == known, "digests and blocks disagree"

    def _forget_content(self, block: int) -> None:
        digest = self._digests[block]
        if digest is not None:
            self._digests[block] = None
            del self._by_digest[digest]
