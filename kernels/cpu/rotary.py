"""Rotating queries and keys by their positions, and writing keys and values to their cache slots."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit

from pageport.kernels.batch import RaggedBatch
from pageport.kernels.cpu.row_ops import PARALLEL_FROM
from pageport.kernels.cpu.scalars import ANY_LENGTH, ELEMENTS, FAST_MATH, draw_task, narrow, pointer_at, widen
from pageport.kernels.cpu.threads import Worker, define_arguments, worker_signature

TOKENS_PER_TASK = 8

RotaryArguments = define_arguments(
    "RotaryArguments",
    (
        "tokens",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "query",
        "query_stride",  # bytes, like all strides here
        "key",
        "key_stride",
        "value",
        "value_stride",
        "kv",
        "block_stride",
        "value_offset",
        "slot_stride",
        "block_size",
        "slots",
        "positions",
        "cos_sin",  # 0: no rotation
    ),
)


def rotary_and_write_kv(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    batch: RaggedBatch,
    cos_sin: torch.Tensor | None,
) -> None:
    """See `Kernels.rotary_and_write_kv`; heads and their elements must lie dense in each token's row."""
    tokens, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    size = query.itemsize
    block_stride, value_offset, slot_stride, _, _ = kv_cache.stride()
    arguments = RotaryArguments(
        0,
        -(-tokens // TOKENS_PER_TASK),
        tokens,
        num_heads,
        num_kv_heads,
        head_dim,
        query.data_ptr(),
        query.stride(0) * size,
        key.data_ptr(),
        key.stride(0) * size,
        value.data_ptr(),
        value.stride(0) * size,
        kv_cache.data_ptr(),
        block_stride * size,
        value_offset * size,
        slot_stride * size,
        kv_cache.shape[2],
        batch.slot_mapping.data_ptr(),
        batch.positions.data_ptr(),
        0 if cos_sin is None else cos_sin.data_ptr(),
    )
    elements = tokens * (num_heads + 2 * num_kv_heads) * head_dim
    _rotary_worker(query.dtype).run(arguments, parallel=elements >= PARALLEL_FROM)


@njit(fastmath=FAST_MATH, error_model="numpy", inline="always")
def _rotate(source: Any, angles: Any, target: Any) -> None:
    """Rotate the pairs (d, d + half) of one head; `angles` holds cosines, then sines."""
    half = len(source) // 2
    low, high = source[:half], source[half:]
    new_low, new_high = target[:half], target[half:]
    cos, sin = angles[:half], angles[half:]
    for d in range(half):
        x, y = widen(low[d]), widen(high[d])
        new_low[d] = narrow(x * cos[d] - y * sin[d], low[d])
        new_high[d] = narrow(y * cos[d] + x * sin[d], low[d])


@cache
def _rotary_worker(dtype: torch.dtype) -> Worker:
    element = ELEMENTS[dtype]

    @cfunc(worker_signature(RotaryArguments), cache=True, fastmath=FAST_MATH, error_model="numpy")
    def rotary(pointer: Any) -> None:
        arguments = carray(pointer, 1)
        a = arguments[0]
        slots = carray(pointer_at(a.slots), a.tokens, np.int64)
        positions = carray(pointer_at(a.positions), a.tokens, np.int64)
        cos_sin = carray(pointer_at(a.cos_sin), (ANY_LENGTH, a.head_dim), np.float32)
        shape = (a.num_kv_heads, a.head_dim)
        while True:
            task = draw_task(arguments)
            if task >= a.num_tasks:
                break
            for token in range(task * TOKENS_PER_TASK, min((task + 1) * TOKENS_PER_TASK, a.tokens)):
                query = carray(
                    pointer_at(a.query + token * a.query_stride), (a.num_heads, a.head_dim), element
                )
                key = carray(pointer_at(a.key + token * a.key_stride), shape, element)
                value = carray(pointer_at(a.value + token * a.value_stride), shape, element)
                block = slots[token] // a.block_size
                slot = slots[token] - block * a.block_size
                target = a.kv + block * a.block_stride + slot * a.slot_stride
                cached_key = carray(pointer_at(target), shape, element)
                cached_value = carray(pointer_at(target + a.value_offset), shape, element)
                if a.cos_sin != 0:
                    angles = cos_sin[positions[token]]
                    for head in range(a.num_heads):
                        _rotate(query[head], angles, query[head])
                    for head in range(a.num_kv_heads):
                        _rotate(key[head], angles, cached_key[head])
                else:
                    cached_key[:] = key
                cached_value[:] = value

    return Worker(rotary)
