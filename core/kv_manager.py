"""Who holds which KV blocks: append, fork with copy-on-write, reuse, free, and the count of what is wasted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pageport.core.block_pool import BlockPool
from pageport.core.block_table import BlockTable


class BlockCopy(NamedTuple):
    """Copy this whole block before the step's tokens are written (copy-on-write)."""

    source: int
    target: int


class KVUsage(NamedTuple):
    """Token slots of all held blocks, and how many of them hold a token; a shared block counts once."""

    reserved_slots: int
    used_slots: int

    @property
    def waste_ratio(self) -> float:
        return 1.0 - self.used_slots / self.reserved_slots if self.reserved_slots else 0.0


class KVManager:
    """Block tables over one pool.

    Method: PagedAttention (Kwon et al., SOSP 2023, sections 4.1 to 4.4). All operations are O(1) per block
    touched. Nothing is reserved ahead: a table holds just the blocks that its tokens need, so all waste is in
    last blocks, and it is counted as it happens.
    """

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_model_len: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        blocks_per_seq = -(-max_model_len // block_size)
        self.tables = np.zeros((max_num_seqs, blocks_per_seq), dtype=np.int32)
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        self._live: dict[int, BlockTable] = {}
        self._fill = [0] * num_blocks  # tokens in each physical block
        self._used_slots = 0

    # -- life of a table ---------------------------------------------------------------------------------

    def create(self, prefix: Sequence[int] = ()) -> BlockTable:
        """A table that begins with full blocks found by `find_prefix`. The caller keeps to `max_num_seqs` at once."""
        row = self._free_rows.pop()
        table = BlockTable(row, self.tables[row])
        self._live[row] = table
        if prefix:
            for block in self.pool.hold(prefix):
                self._fill[block] = self.block_size
                self._used_slots += self.block_size
            table.ids[: len(prefix)] = prefix
            table.num_blocks, table.num_tokens = len(prefix), len(prefix) * self.block_size
        return table

    def find_prefix(self, digests: Sequence[bytes]) -> list[int]:
        """The blocks whose content is the longest run of these digests, from the first on."""
        blocks = []
        for digest in digests:
            block = self.pool.find(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def register(self, table: BlockTable, index: int, digest: bytes) -> None:
        """Let others find the full block `index` of a table; its keys and values are computed and final."""
        assert (index + 1) * self.block_size <= table.num_tokens, "the block is not full"
        self.pool.register(int(table.ids[index]), digest)

    def blocks_needed_anew(self, prefix: Sequence[int], num_tokens: int) -> int:
        """Free blocks that a new table with this prefix takes until it has `num_tokens` tokens in all."""
        revived = sum(self.pool.ref_count(block) == 0 for block in prefix)
        return -(-num_tokens // self.block_size) - len(prefix) + revived

    def blocks_needed(self, table: BlockTable, num_tokens: int) -> int:
        """Free blocks that `append(table, num_tokens)` would take."""
        grown = -(-(table.num_tokens + num_tokens) // self.block_size) - table.num_blocks
        return grown + (num_tokens > 0 and self._shares_last_slots(table))

    def can_append(self, table: BlockTable, num_tokens: int) -> bool:
        return self.blocks_needed(table, num_tokens) <= self.pool.num_free

    def append(self, table: BlockTable, num_tokens: int) -> BlockCopy | None:
        """Take the next `num_tokens` slots of a table; `can_append` must hold.

        Returns the copy to make first where the last, partly filled block is shared: the table then has a
        block of its own in its place.
        """
        if num_tokens == 0:
            return None
        copy = self._unshare_last_block(table) if self._shares_last_slots(table) else None
        wanted = -(-(table.num_tokens + num_tokens) // self.block_size)
        fresh = self.pool.allocate(wanted - table.num_blocks)
        first_touched = table.num_tokens // self.block_size
        if fresh:
            table.ids[table.num_blocks : wanted] = fresh
            table.num_blocks = wanted
        table.num_tokens += num_tokens
        for index in range(first_touched, wanted):
            self._fill[table.ids[index]] = min(self.block_size, table.num_tokens - index * self.block_size)
        self._used_slots += num_tokens
        return copy

    def fork(self, table: BlockTable) -> BlockTable:
        """A second table over the same blocks; whoever writes first copies the last one."""
        child = self.create()
        child.ids[: table.num_blocks] = table.ids[: table.num_blocks]
        child.num_blocks, child.num_tokens = table.num_blocks, table.num_tokens
        self.pool.share(table.block_ids())
        return child

    def free(self, table: BlockTable) -> None:
        """Give back a table's references and its row. A table is freed once."""
        if self._live.pop(table.row, None) is not table:
            raise RuntimeError("this block table was freed before")
        self._release(table.block_ids())
        self._free_rows.append(table.row)
        table.num_blocks = table.num_tokens = 0

    # -- accounting --------------------------------------------------------------------------------------

    def usage(self) -> KVUsage:
        return KVUsage(self.pool.num_used * self.block_size, self._used_slots)

    def check_integrity(self) -> None:
        """Assert every invariant that tests and an idle engine rely on."""
        self.pool.check_integrity(block for table in self._live.values() for block in table.block_ids())
        for table in self._live.values():
            assert table.num_blocks == -(-table.num_tokens // self.block_size), "table holds spare blocks"
        held = {block for table in self._live.values() for block in table.block_ids()}
        assert self._used_slots == sum(self._fill[block] for block in held), "used slots are miscounted"

    # -- private -----------------------------------------------------------------------------------------

    def _shares_last_slots(self, table: BlockTable) -> bool:
        if table.num_tokens % self.block_size == 0:
            return False
        return self.pool.ref_count(table.ids[table.num_blocks - 1]) > 1

    def _unshare_last_block(self, table: BlockTable) -> BlockCopy:
        last = table.num_blocks - 1
        source = int(table.ids[last])
        (target,) = self.pool.allocate(1)
        self._fill[target] = table.num_tokens - last * self.block_size
        self._used_slots += self._fill[target]
        table.ids[last] = target
        self._release([source])
        return BlockCopy(source, target)

    def _release(self, blocks: list[int]) -> None:
        for block in self.pool.release(blocks):
            self._used_slots -= self._fill[block]
            self._fill[block] = 0
