"""Attention of chunks of several new tokens: bound by arithmetic, so torch's matrix products do it.

One sequence at a time, the rows in use are copied out of their blocks (0.12 ms for 2,048 tokens of three
heads of 64, against 8 ms of arithmetic for a chunk of 128) and the chunk is attended tile by tile.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from pageport.kernels.reference import attend, causal_mask, first_visible

# Tokens of a chunk attended at once. It bounds the mask and, with a soft cap, the logits; and a tile does
# not compute what lies in the future of all its tokens. Milliseconds on two cores, 9 query and 3 KV heads
# of 64, bfloat16, tile of 64 / 128 / 256 / all: 512 tokens 6.1 / 6.5 / 7.2 / 9.0, the same over 1,536 of
# context 36 / 37 / 36 / 39, and 32 tokens over 2,016 of context 3.1 / 2.5 / 2.6 / 3.1 (a matrix product,
# softmax, matrix product of our own: 17, 71, 5.6).
QUERY_TILE = 128


def prefill_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_len: int,
    output: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
) -> None:
    """Attend one sequence's last `Q` tokens, query [Q, Hq, D], into output [Q, Hq, D]."""
    query_len = query.shape[0]
    first = first_visible(seq_len - query_len, sliding_window)
    keys, values = _gather(kv_cache, block_table, first, seq_len)
    for start in range(0, query_len, QUERY_TILE):
        stop = min(start + QUERY_TILE, query_len)
        last = seq_len - query_len + stop
        oldest = first_visible(last - (stop - start), sliding_window)
        rows = slice(oldest - first, last - first)
        mask = causal_mask(stop - start, oldest, last, sliding_window, query.device)
        tile = query[start:stop]
        if soft_cap is None:
            output[start:stop] = functional.scaled_dot_product_attention(
                tile.transpose(0, 1).unsqueeze(0),
                keys[rows].transpose(0, 1).unsqueeze(0),
                values[rows].transpose(0, 1).unsqueeze(0),
                attn_mask=mask,
                scale=scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
        else:
            output[start:stop] = attend(tile, keys[rows].float(), values[rows].float(), mask, scale, soft_cap)


def _gather(
    kv_cache: torch.Tensor, block_table: torch.Tensor, first: int, seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy tokens `first .. seq_len - 1` out of their blocks: keys and values [tokens, Hkv, D]."""
    block_size = kv_cache.shape[2]
    first_block = first // block_size
    blocks = block_table[first_block : -(-seq_len // block_size)]
    rows = slice(first - first_block * block_size, seq_len - first_block * block_size)
    keys, values = (kv_cache[:, part].index_select(0, blocks).flatten(0, 1)[rows] for part in (0, 1))
    return keys, values
