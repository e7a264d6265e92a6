"""Ragged paged attention in Triton: prompts and mixed chunks in one kernel, decodes in one that splits the context.

Method: FlashAttention-2's online softmax (Dao, arXiv 2307.08691) over the blocks of PagedAttention (Kwon et al., SOSP
2023); the query heads that share a KV head are packed into one matrix tile; decodes split the context as in
Flash-Decoding. Tiles are free of the block size, their edges lie at multiples of the tile, and a split is a fixed range
of the context: what a row computes does not depend on the rest of the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr, WIDE_DOT: tl.constexpr):
    """Matrix product with float32 sums. WIDE_DOT: operands are widened first, because Triton's interpreter cannot
    multiply bfloat16; the products are the same."""
    if WIDE_DOT:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _attend_range(
    query,
    position,
    kv_ptr,
    table_ptr,
    first,
    last,
    scale,
    soft_cap,
    window,
    row_max,
    row_sum,
    total,
    stride_block,
    stride_kv,
    stride_slot,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE_DOT: tl.constexpr,
):
    """Online softmax of some rows over the tokens `first .. last - 1` of one sequence and KV head.

    query [M, DIM]; position [M]: each row's place in the sequence. Logits are kept in base 2: `scale` and `soft_cap`
    contain log2(e). Returns the updated total [M, DIM], row_max [M] and row_sum [M].
    """
    dim = tl.arange(0, DIM)
    in_head = dim < HEAD_DIM
    for start in range(first // TILE * TILE, last, TILE):
        token = start + tl.arange(0, TILE)
        present = (token >= first) & (token < last)
        block = tl.load(table_ptr + token // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
        slot = block * stride_block + (token % BLOCK_SIZE) * stride_slot
        key = tl.load(
            kv_ptr + slot[None, :] + dim[:, None], mask=present[None, :] & in_head[:, None], other=0.0
        )
        logits = _dot(query, key.to(query.dtype), PRECISION, WIDE_DOT) * scale
        if HAS_CAP:
            logits = soft_cap * (2 * tl.sigmoid(2 * logits / soft_cap) - 1)
        visible = present[None, :] & (token[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible = visible & (token[None, :] > position[:, None] - window)
        logits = tl.where(visible, logits, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(logits, axis=1))
        # A row that has seen nothing yet has no maximum; any finite number gives it zero weights.
        anchor = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp2(logits - anchor[:, None])
        shrink = tl.exp2(row_max - anchor)
        row_sum = row_sum * shrink + tl.sum(weight, axis=1)
        value = tl.load(
            kv_ptr + stride_kv + slot[:, None] + dim[None, :],
            mask=present[:, None] & in_head[None, :],
            other=0.0,
        )
        total = total * shrink[:, None]
        total += _dot(weight.to(query.dtype), value.to(query.dtype), PRECISION, WIDE_DOT)
        row_max = new_max
    return total, row_max, row_sum


@triton.jit
def _find_sequence(starts_ptr, first_seq, num_seqs, index, TOKENS: tl.constexpr):
    """The sequence whose tiles of TOKENS queries contain tile `index`; sequence s starts at tile
    `(starts[s] - starts[first_seq]) // TOKENS + s - first_seq`, so there may be an empty tile at its end."""
    origin = tl.load(starts_ptr + first_seq)
    low = first_seq
    high = first_seq + num_seqs
    while low + 1 < high:
        middle = (low + high) // 2
        tile = (tl.load(starts_ptr + middle) - origin) // TOKENS + middle - first_seq
        if tile <= index:
            low = middle
        else:
            high = middle
    return low, index - ((tl.load(starts_ptr + low) - origin) // TOKENS + low - first_seq)


@triton.jit
def attend_chunks(
    out_ptr,
    query_ptr,
    kv_ptr,
    tables_ptr,
    starts_ptr,
    seq_lens_ptr,
    scales_ptr,
    sinks_ptr,
    scale,
    soft_cap,
    window,
    first_seq,
    num_seqs,
    stride_query,
    stride_out,
    stride_block,
    stride_kv,
    stride_slot,
    stride_head,
    stride_table,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE_DOT: tl.constexpr,
):
    """Chunks of any length. Program (i, h): query tile i over all chunks, KV head h; ROWS // GROUP tokens a tile."""
    TOKENS: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(1)
    seq, tile = _find_sequence(starts_ptr, first_seq, num_seqs, tl.program_id(0), TOKENS)
    start = tl.load(starts_ptr + seq)
    query_len = tl.load(starts_ptr + seq + 1) - start
    if tile * TOKENS >= query_len:
        return
    seq_len = tl.load(seq_lens_ptr + seq)
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    token = tile * TOKENS + row // GROUP
    head = kv_head * GROUP + row % GROUP
    valid = (row < TOKENS * GROUP) & (token < query_len)
    position = seq_len - query_len + token
    inside = valid[:, None] & (dim < HEAD_DIM)[None, :]
    where = (start + token).to(tl.int64)
    query = tl.load(
        query_ptr + where[:, None] * stride_query + head[:, None] * HEAD_DIM + dim[None, :],
        mask=inside,
        other=0.0,
    )
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    if HAS_SINKS:
        row_max = tl.load(sinks_ptr + head, mask=valid, other=0.0).to(tl.float32) * 1.4426950408889634
        row_sum += 1.0
    oldest = seq_len - query_len + tile * TOKENS
    newest = tl.minimum(oldest + TOKENS, seq_len)
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(oldest - window + 1, 0)
    value_scale = 1.0
    if HAS_SCALES:
        scale = scale * tl.load(scales_ptr + kv_head)
        value_scale = tl.load(scales_ptr + tl.num_programs(1) + kv_head)
    total, row_max, row_sum = _attend_range(
        query, position, kv_ptr + kv_head * stride_head, tables_ptr + seq.to(tl.int64) * stride_table, first, newest,
        scale, soft_cap, window, row_max, row_sum, tl.zeros([ROWS, DIM], tl.float32),
        stride_block, stride_kv, stride_slot,
        BLOCK_SIZE, TILE, HEAD_DIM, DIM, HAS_CAP, HAS_WINDOW, PRECISION, WIDE_DOT,
    )  # fmt: skip
    result = total * (value_scale / tl.maximum(row_sum, 1e-30))[:, None]
    tl.store(
        out_ptr + where[:, None] * stride_out + head[:, None] * HEAD_DIM + dim[None, :],
        result.to(out_ptr.dtype.element_ty),
        mask=inside,
    )


@triton.jit
def attend_splits(
    total_ptr,
    max_ptr,
    sum_ptr,
    query_ptr,
    kv_ptr,
    tables_ptr,
    seq_lens_ptr,
    scales_ptr,
    scale,
    soft_cap,
    window,
    stride_query,
    stride_block,
    stride_kv,
    stride_slot,
    stride_head,
    stride_table,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE_DOT: tl.constexpr,
):
    """Single queries. Program (s, h, p): sequence s, KV head h, tokens `p * SPLIT ..` of its context.

    Writes unnormalised totals [S, Hq, P, HEAD_DIM], maxima and sums [S, Hq, P], all float32; nothing where the split
    holds no visible token.
    """
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq_len = tl.load(seq_lens_ptr + seq)
    first = split * SPLIT
    last = tl.minimum(first + SPLIT, seq_len)
    if HAS_WINDOW:
        first = tl.maximum(first, seq_len - window)
    if first >= last:
        return
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    head = kv_head * GROUP + row
    inside = (row < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    query = tl.load(
        query_ptr + seq.to(tl.int64) * stride_query + head[:, None] * HEAD_DIM + dim[None, :],
        mask=inside,
        other=0.0,
    )
    if HAS_SCALES:
        scale = scale * tl.load(scales_ptr + kv_head)
    total, row_max, row_sum = _attend_range(
        query, tl.full([ROWS], 0, tl.int32) + seq_len - 1, kv_ptr + kv_head * stride_head,
        tables_ptr + seq.to(tl.int64) * stride_table, first, last, scale, soft_cap, window,
        tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DIM], tl.float32),
        stride_block, stride_kv, stride_slot,
        BLOCK_SIZE, TILE, HEAD_DIM, DIM, HAS_CAP, HAS_WINDOW, PRECISION, WIDE_DOT,
    )  # fmt: skip
    if HAS_SCALES:
        total = total * tl.load(scales_ptr + tl.num_programs(1) + kv_head)
    place = (seq.to(tl.int64) * tl.num_programs(1) * GROUP + head) * tl.num_programs(2) + split
    tl.store(total_ptr + place[:, None] * HEAD_DIM + dim[None, :], total, mask=inside)
    tl.store(max_ptr + place, row_max, mask=row < GROUP)
    tl.store(sum_ptr + place, row_sum, mask=row < GROUP)


@triton.jit
def reduce_splits(
    out_ptr,
    total_ptr,
    max_ptr,
    sum_ptr,
    seq_lens_ptr,
    sinks_ptr,
    window,
    num_splits,
    stride_out,
    SPLIT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):
    """Joins the splits of program (s, h)'s sequence and query head, in the order of the context."""
    seq = tl.program_id(0)
    head = tl.program_id(1)
    seq_len = tl.load(seq_lens_ptr + seq)
    dim = tl.arange(0, DIM)
    place = (seq.to(tl.int64) * tl.num_programs(1) + head) * num_splits
    first = 0
    if HAS_WINDOW:
        first = tl.maximum(seq_len - window, 0) // SPLIT
    joint_max = float("-inf")
    joint_sum = 0.0
    if HAS_SINKS:
        joint_max = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
        joint_sum = 1.0
    total = tl.zeros([DIM], tl.float32)
    for split in range(first, tl.cdiv(seq_len, SPLIT)):
        own_max = tl.load(max_ptr + place + split)
        new_max = tl.maximum(joint_max, own_max)
        shrink = tl.exp2(joint_max - new_max)
        grow = tl.exp2(own_max - new_max)
        own = tl.load(total_ptr + (place + split) * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0)
        total = total * shrink + own * grow
        joint_sum = joint_sum * shrink + tl.load(sum_ptr + place + split) * grow
        joint_max = new_max
    tl.store(
        out_ptr + seq.to(tl.int64) * stride_out + head * HEAD_DIM + dim,
        (total / joint_sum).to(out_ptr.dtype.element_ty),
        mask=dim < HEAD_DIM,
    )
