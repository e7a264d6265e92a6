"""Operations on rows of activations in Triton: RMSNorm, gated activations, rotation with the KV write."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm_rows(
    out_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    eps,
    stride_x,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADD: tl.constexpr,
):
    """One row a program. ADD: the row is first added into the residual, which is rounded and kept."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < WIDTH
    x = tl.load(x_ptr + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_ptr + row * WIDTH + column, rounded, mask=inside)
        x = rounded.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / WIDTH + eps)
    normal = (x * inverse).to(out_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, (normal * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gate_rows(out_ptr, x_ptr, stride_x, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr):
    """Program (row, part): activation of the first half of a row times its second half."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    gate = tl.load(x_ptr + row * stride_x + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride_x + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # The tanh approximation (Hendrycks and Gimpel, arXiv 1606.08415); tanh(y) = 2 sigmoid(2y) - 1.
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = gate * tl.sigmoid(2 * inner)
    else:
        active = gate * tl.sigmoid(gate)
    tl.store(out_ptr + row * WIDTH + column, (active * up).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rotate_and_write(
    query_ptr,
    key_ptr,
    value_ptr,
    kv_ptr,
    positions_ptr,
    slots_ptr,
    cos_sin_ptr,
    scales_ptr,
    stride_query,
    stride_key,
    stride_value,
    stride_block,
    stride_kv,
    stride_slot,
    stride_head,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KV_HEADS_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    ROTATE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """One token a program: rotates its queries in place, writes its rotated keys and its values to their slot."""
    token = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, HALF_PADDED)
    in_half = dim < HALF
    head = tl.arange(0, HEADS_PADDED)
    kv_head = tl.arange(0, KV_HEADS_PADDED)
    in_query = (head < HEADS)[:, None] & in_half[None, :]
    in_kv = (kv_head < KV_HEADS)[:, None] & in_half[None, :]
    key_at = key_ptr + token * stride_key + kv_head[:, None] * (2 * HALF) + dim[None, :]
    key_low = tl.load(key_at, mask=in_kv, other=0.0).to(tl.float32)
    key_high = tl.load(key_at + HALF, mask=in_kv, other=0.0).to(tl.float32)
    if ROTATE:
        angles = cos_sin_ptr + tl.load(positions_ptr + token) * (2 * HALF) + dim
        cos = tl.load(angles, mask=in_half, other=0.0)[None, :]
        sin = tl.load(angles + HALF, mask=in_half, other=0.0)[None, :]
        query_at = query_ptr + token * stride_query + head[:, None] * (2 * HALF) + dim[None, :]
        low = tl.load(query_at, mask=in_query, other=0.0).to(tl.float32)
        high = tl.load(query_at + HALF, mask=in_query, other=0.0).to(tl.float32)
        tl.store(query_at, (low * cos - high * sin).to(query_ptr.dtype.element_ty), mask=in_query)
        tl.store(query_at + HALF, (high * cos + low * sin).to(query_ptr.dtype.element_ty), mask=in_query)
        rotated = key_low * cos - key_high * sin
        key_high = key_high * cos + key_low * sin
        key_low = rotated
    value_at = value_ptr + token * stride_value + kv_head[:, None] * (2 * HALF) + dim[None, :]
    value_low = tl.load(value_at, mask=in_kv, other=0.0).to(tl.float32)
    value_high = tl.load(value_at + HALF, mask=in_kv, other=0.0).to(tl.float32)
    if HAS_SCALES:
        key_scale = tl.load(scales_ptr + kv_head, mask=kv_head < KV_HEADS, other=1.0)[:, None]
        value_scale = tl.load(scales_ptr + KV_HEADS + kv_head, mask=kv_head < KV_HEADS, other=1.0)[:, None]
        key_low, key_high = key_low / key_scale, key_high / key_scale
        value_low, value_high = value_low / value_scale, value_high / value_scale
    slot = tl.load(slots_ptr + token)
    at = kv_ptr + slot // BLOCK_SIZE * stride_block + slot % BLOCK_SIZE * stride_slot
    at = at + kv_head[:, None] * stride_head + dim[None, :]
    stored = kv_ptr.dtype.element_ty
    tl.store(at, key_low.to(stored), mask=in_kv)
    tl.store(at + HALF, key_high.to(stored), mask=in_kv)
    tl.store(at + stride_kv, value_low.to(stored), mask=in_kv)
    tl.store(at + stride_kv + HALF, value_high.to(stored), mask=in_kv)
