"""A step's plan as arrays: all new tokens laid end to end, and where their sequences' blocks lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pageport.core.kv_manager import KVManager
from pageport.core.scheduler import ScheduledSequence
from pageport.kernels import RaggedBatch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Arrays on the host, for S sequences and T new tokens; see `RaggedBatch` for what they mean.

    Attributes:
        input_ids, positions, slot_mapping: int64 [T].
        query_lens, seq_lens: int64 [S], each sequence's new tokens, and all of its tokens after the step.
        block_tables: int32 [S, blocks of the longest].
    """

    input_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slot_mapping: npt.NDArray[np.int64]
    query_lens: npt.NDArray[np.int64]
    seq_lens: npt.NDArray[np.int64]
    block_tables: npt.NDArray[np.int32]

    @property
    def is_decode(self) -> bool:
        """Whether each sequence has one new token."""
        return len(self.input_ids) == len(self.query_lens)

    def to(self, device: torch.device) -> tuple[torch.Tensor, RaggedBatch]:
        """Token ids and the batch as tensors."""

        def tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
            return torch.from_numpy(array).to(device)

        starts = np.zeros(len(self.query_lens) + 1, dtype=np.int32)
        np.cumsum(self.query_lens, out=starts[1:])
        return tensor(self.input_ids), RaggedBatch(
            query_start_loc=tensor(starts),
            seq_lens=tensor(self.seq_lens.astype(np.int32)),
            block_tables=tensor(self.block_tables),
            positions=tensor(self.positions),
            slot_mapping=tensor(self.slot_mapping),
            num_decodes=int((self.query_lens == 1).sum()),
            query_lens_host=tuple(self.query_lens.tolist()),
            seq_lens_host=tuple(self.seq_lens.tolist()),
        )


def collect_inputs(items: Sequence[ScheduledSequence], kv: KVManager) -> StepInputs:
    """What the scheduled tokens are, and where their keys and values go."""
    ids: list[int] = []
    for sequence, num_tokens in items:
        ids += sequence.token_ids[sequence.num_computed : sequence.num_computed + num_tokens]
    tables = [item.sequence.table for item in items]
    new = np.fromiter((item.num_tokens for item in items), np.int64, len(items))
    computed = np.fromiter((item.sequence.num_computed for item in items), np.int64, len(items))
    ends = np.cumsum(new)
    seq_of_token = np.repeat(np.arange(len(items)), new)
    positions = np.arange(len(ids)) - np.repeat(ends - new - computed, new)
    table_rows = np.fromiter((table.row for table in tables if table is not None), np.int64, len(items))
    width = max(table.num_blocks for table in tables if table is not None)
    block_tables = kv.tables[table_rows, :width]
    block_size = kv.block_size
    blocks = block_tables[seq_of_token, positions // block_size].astype(np.int64)
    return StepInputs(
        input_ids=np.array(ids, dtype=np.int64),
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        query_lens=new,
        seq_lens=computed + new,
        block_tables=block_tables,
    )
