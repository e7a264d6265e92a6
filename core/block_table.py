"""A sequence's view of the KV cache: logical position to physical block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BlockIds = npt.NDArray[np.int32]


@dataclass(slots=True, eq=False)
class BlockTable:
    """The blocks of one sequence, as a row of the matrix that all tables share.

    Living in one matrix lets a step hand the tables of its whole batch to the kernels with one indexing
    operation, however many blocks they hold. Only the `KVManager` changes a table.

    Attributes:
        row: index of the matrix row.
        ids: int32 [max_blocks_per_seq], the row itself; the first `num_blocks` entries are valid.
        num_tokens: token slots taken, `<= num_blocks * block_size`.
    """

    row: int
    ids: BlockIds
    num_blocks: int = 0
    num_tokens: int = 0

    def block_ids(self) -> list[int]:
        ids: list[int] = self.ids[: self.num_blocks].tolist()
        return ids
