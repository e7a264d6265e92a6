"""Random attention problems over a poisoned pool, and how far two kernels may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from pageport.kernels import Kernels, RaggedBatch

NO_BLOCK = 2**30  # an id past every pool: reading it would crash


@dataclass(frozen=True)
class AttentionCase:
    """Arguments of `paged_attention`, and the sequences without paging: keys, values [tokens, Hkv, D]."""

    query: torch.Tensor
    kv_cache: torch.Tensor
    batch: RaggedBatch
    scale: float
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    def run(self, kernels: Kernels, **options: float | None) -> torch.Tensor:
        return kernels.paged_attention(
            self.query,
            self.kv_cache,
            self.batch,
            scale=self.scale,
            **options,  # type: ignore[arg-type]
        )

    def pick(self, indices: Sequence[int]) -> AttentionCase:
        """The same problem for some of the sequences, in the order given (single-token ones first)."""
        batch = self.batch
        rows = [
            torch.arange(batch.query_start_loc[i].item(), batch.query_start_loc[i + 1].item())
            for i in indices
        ]
        chosen = make_batch(
            [batch.query_lens_host[i] for i in indices],
            [batch.seq_lens_host[i] for i in indices],
            batch.block_tables[list(indices)].contiguous(),
            self.kv_cache.shape[2],
        )
        return replace(self, query=self.query[torch.cat(rows)], batch=chosen)

    def on(self, device: torch.device) -> AttentionCase:
        """The same problem on another device."""
        batch = self.batch
        return replace(
            self,
            query=self.query.to(device),
            kv_cache=self.kv_cache.to(device),
            batch=replace(
                batch,
                query_start_loc=batch.query_start_loc.to(device),
                seq_lens=batch.seq_lens.to(device),
                block_tables=batch.block_tables.to(device),
                positions=batch.positions.to(device),
                slot_mapping=batch.slot_mapping.to(device),
            ),
        )

    def rows(self, index: int) -> slice:
        return slice(int(self.batch.query_start_loc[index]), int(self.batch.query_start_loc[index + 1]))


def make_batch(
    query_lens: Sequence[int], seq_lens: Sequence[int], tables: torch.Tensor, block_size: int
) -> RaggedBatch:
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    positions = torch.cat([torch.arange(s - q, s) for q, s in zip(query_lens, seq_lens, strict=True)])
    owner = torch.repeat_interleave(torch.arange(len(seq_lens)), torch.tensor(query_lens))
    blocks = tables[owner, positions // block_size].long()
    return RaggedBatch(
        query_start_loc=starts.int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=tables,
        positions=positions,
        slot_mapping=blocks * block_size + positions % block_size,
        num_decodes=sum(q == 1 for q in query_lens),
        query_lens_host=tuple(query_lens),
        seq_lens_host=tuple(seq_lens),
    )


def never_zero(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Magnitudes from 0.1 to 2, so that a dropped or repeated element always shows."""
    magnitude = torch.rand(shape, generator=generator) * 1.9 + 0.1
    return torch.where(torch.rand(shape, generator=generator) < 0.5, -magnitude, magnitude)


def build_case(
    heads: tuple[int, int, int],
    lengths: Sequence[tuple[int, int]],
    *,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    visible_from: int | None = None,
    seed: int = 0,
) -> AttentionCase:
    """Heads are (query, KV, size); sequences (new tokens, all tokens), sorted with single-token ones first.

    Blocks are scattered, table entries past a sequence's end name no block, queries are a slice of a merged
    tensor, and whatever no new token may see is NaN: unused slots, other layers, with `visible_from` (a
    sliding window) also what has slid out.
    """
    num_heads, num_kv_heads, dim = heads
    generator = torch.Generator().manual_seed(seed)
    lengths = sorted(lengths, key=lambda pair: pair[0] > 1)
    needed = [-(-total // block_size) for _, total in lengths]
    pool = torch.full((sum(needed) + 3, 3, 2, block_size, num_kv_heads, dim), torch.nan, dtype=dtype)
    kv_cache = pool[:, 1]
    free = torch.randperm(pool.shape[0], generator=generator).tolist()
    tables = torch.full((len(lengths), max(needed) + 2), NO_BLOCK, dtype=torch.int32)
    keys, values = [], []
    for index, (new, total) in enumerate(lengths):
        blocks = torch.tensor([free.pop() for _ in range(needed[index])])
        tables[index, : len(blocks)] = blocks
        key, value = never_zero(generator, 2, total, num_kv_heads, dim).to(dtype)
        oldest = 0 if visible_from is None else max(0, total - new - visible_from + 1)
        token = torch.arange(oldest, total)
        kv_cache[blocks[token // block_size], 0, token % block_size] = key[oldest:]
        kv_cache[blocks[token // block_size], 1, token % block_size] = value[oldest:]
        keys.append(key)
        values.append(value)
    merged = never_zero(generator, sum(new for new, _ in lengths), num_heads + 2, dim).to(dtype)
    batch = make_batch([new for new, _ in lengths], [total for _, total in lengths], tables, block_size)
    return AttentionCase(merged[:, :num_heads], kv_cache, batch, dim**-0.5, tuple(keys), tuple(values))


class Bound(NamedTuple):
    relative: float
    absolute: float


# How far two implementations may lie apart, inputs below 2 in magnitude (so are the outputs of attention).
# float32: the same sums in another order; a few hundred roundings of 2**-24 that mostly cancel.
# bfloat16, computed in float32 and rounded once (decode, rows): one step of 2**-7 where a rounding tips over.
# bfloat16 with rounded weights (prefill): the library rounds each softmax weight to 2**-9, which moves the
#   weighted mean of the values by at most 2 * 2**-9 per pass; there are a pass for weights and one for their
#   sum; and the result is rounded.
# float16 on the CPU: goes to the reference, hence no difference.
# The GPU's kernels round softmax weights to the type of the values, decodes too: one rounding for the weights, one for
#   the result. Triton's interpreter cuts bfloat16 off where the hardware rounds, which doubles the steps.
BOUNDS = {
    ("rows", torch.float32): Bound(1e-5, 5e-6),
    ("rows", torch.bfloat16): Bound(2**-7, 1e-5),
    ("rows", torch.float16): Bound(0, 0),
    ("prefill", torch.float32): Bound(1e-5, 5e-6),
    ("prefill", torch.bfloat16): Bound(2**-7, 2**-7),
    ("prefill", torch.float16): Bound(0, 0),
    ("gpu", torch.float32): Bound(1e-5, 5e-6),
    ("gpu", torch.bfloat16): Bound(2**-6, 2**-7),
    ("gpu", torch.float16): Bound(2**-10, 2**-10),
    # Sum, norm and product with the weight one after the other, each cut off by the interpreter.
    ("interpreted add_rms_norm", torch.bfloat16): Bound(2**-5, 2**-7),
}


def check_close(actual: torch.Tensor, expected: torch.Tensor, kind: str) -> None:
    """Assert that two results agree within the bound for `kind` (see `BOUNDS`) and their type."""
    bound = BOUNDS[kind, actual.dtype]
    torch.testing.assert_close(
        actual.float().cpu(), expected.float(), rtol=bound.relative, atol=bound.absolute
    )
