"""Moving whole KV blocks in Triton: copy-on-write inside the pool, gather and scatter for swapping."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def move_blocks(
    target_ptr,
    source_ptr,
    target_ids_ptr,
    source_ids_ptr,
    SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    GATHER: tl.constexpr,
    SCATTER: tl.constexpr,
):
    """Program (i, c): chunk c of the i-th block, SIZE elements long.

    The i-th block lies at `source_ids[i]` in the source (GATHER) or at i, and goes to `target_ids[i]` (SCATTER) or i.
    """
    index = tl.program_id(0)
    element = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    source = index.to(tl.int64)
    target = index.to(tl.int64)
    if GATHER:
        source = tl.load(source_ids_ptr + index).to(tl.int64)
    if SCATTER:
        target = tl.load(target_ids_ptr + index).to(tl.int64)
    inside = element < SIZE
    tl.store(
        target_ptr + target * SIZE + element,
        tl.load(source_ptr + source * SIZE + element, mask=inside),
        mask=inside,
    )
