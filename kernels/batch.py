"""The ragged batch that attention works on: no prefill and no decode, only rows and lengths."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """One step's sequences, their new tokens laid end to end.

    Sequences with a single new token come first (`num_decodes` of them); the order of the rest is free.

    Attributes:
        query_start_loc: int32 [num_seqs + 1], where each sequence's new tokens start among all new tokens.
        seq_lens: int32 [num_seqs], tokens of each sequence after this step (cached + new).
        block_tables: int32 [num_seqs, max_blocks], physical block ids; entries past the length are arbitrary.
        positions: int64 [num_tokens], position of each new token in its sequence.
        slot_mapping: int64 [num_tokens], block id * block_size + offset where each new token's KV goes.
        query_lens_host, seq_lens_host: the same lengths as Python ints, to plan loops without a device sync.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    query_lens_host: tuple[int, ...]
    seq_lens_host: tuple[int, ...]
