"""How the attention kernels are cut for a shape: a rule instead of a search, so that nothing needs a GPU to choose."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# A single query's context is split at multiples of so many tokens, whatever else is in the batch.
SPLIT = 512

# tl.dot needs at least so many rows.
_FEWEST_ROWS = 16


@dataclass(frozen=True, slots=True)
class TileShape:
    """rows: packed query rows of a program; tile: tokens of a KV tile; warps, stages: Triton's launch options."""

    rows: int
    tile: int
    warps: int
    stages: int


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()


def chunk_shape(head_dim: int, group: int, dtype: torch.dtype) -> TileShape:
    """Prompts: as many rows as the registers hold, at least one token of every head of the group.

    float32 products run without tensor cores, each operand in registers, so their tiles are small.
    """
    dim = power_of_two(head_dim)
    if dtype == torch.float32:
        rows = max(_FEWEST_ROWS if dim > 128 else 32, power_of_two(group))
        return TileShape(rows, 32 if dim == 128 else 16, 8, 1)
    return TileShape(max(64 if dim > 128 else 128, power_of_two(group)), 32 if dim > 128 else 64, 8, 2)


def decode_shape(head_dim: int, group: int, dtype: torch.dtype) -> TileShape:
    """Single queries: memory is the limit, so few rows, and several tiles in flight."""
    dim = power_of_two(head_dim)
    rows = max(_FEWEST_ROWS, power_of_two(group))
    if dtype == torch.float32:
        return TileShape(rows, 16, 4, 1 if dim > 128 else 2)
    return TileShape(rows, 32 if dim > 128 else 64, 4, 3)
