"""Attention of sequences with one new token: straight from the KV blocks, split along the context.

The work is cut into tasks: one sequence, one partition of `PARTITION` tokens, and a slice of the KV heads. A
partition is a fixed stretch of a sequence's own positions, so neither the rest of the batch nor the number
of threads can change a bit of the result. Within a partition runs the online softmax (Milakov and Gimelshein,
arXiv:1805.02867), tile by tile; partitions are merged in order, as in Flash-Decoding, by whoever finishes a
slice's last one. All query heads of a KV head are computed together: each K and V row is loaded once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit

from pageport.kernels.batch import RaggedBatch
from pageport.kernels.cpu.row_groups import ROWS, add_rows, prefetch_rows, score_rows
from pageport.kernels.cpu.scalars import (
    ANY_LENGTH,
    ELEMENTS,
    FAST_MATH,
    LOG2_E,
    draw_task,
    exp2,
    fetch_and_add,
    narrow,
    pointer_at,
    tanh,
    widen,
)
from pageport.kernels.cpu.softmax_step import softmax_step
from pageport.kernels.cpu.threads import Worker, define_arguments, worker_signature

PARTITION = 256

# Tokens between two rescalings, and how far memory is asked for ahead. As long as a usual block: its keys are read,
# then its values, which lie behind them. With 32, keys and values of two blocks take turns, and 64 sequences of 208
# tokens are read at 25 GB/s instead of 34 (two threads, where summing a long array reads 48).
TILE = 16

# A task takes as many KV heads as make pieces of this many bytes of each slot: reading 128 bytes of every 384
# runs at a third of the speed of reading all (3.5 against 10 GB/s, one thread, blocks in random order).
SLICE_BYTES = 1024

PARALLEL_FROM = 262_144  # bytes of KV read; below, one thread is done before a second one has woken

NEGATIVE_INFINITY = np.float32(-np.inf)

DecodeArguments = define_arguments(
    "DecodeArguments",
    (
        "query",
        "query_stride",  # bytes, like all strides here
        "kv",
        "block_stride",
        "value_offset",
        "slot_stride",
        "block_size",
        "tables",
        "table_stride",
        "seq_lens",
        "output",
        "partials",  # float32 [num_seqs, num_kv_heads, max_partitions, group * (head_dim + 2)]
        "finished",  # int64 [num_seqs, num_slices]: partitions done; zero before and after a call
        "max_partitions",
        "num_kv_heads",
        "slice_heads",
        "num_slices",
        "num_seqs",
        "window",  # 0: none
    ),
    floats=("scale", "soft_cap"),  # soft_cap 0: none
)


class DecodeAttention:
    """The launcher, with its scratch memory: not for two threads at once."""

    def __init__(self) -> None:
        self._partials = torch.empty(0)
        self._finished = torch.zeros(0, dtype=torch.int64)

    def run(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: RaggedBatch,
        output: torch.Tensor,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None,
    ) -> None:
        """Attend the batch's first `num_decodes` rows into `output`; arguments as in `Kernels`."""
        num_seqs = batch.num_decodes
        _, num_heads, head_dim = query.shape
        num_kv_heads, size = kv_cache.shape[3], query.itemsize
        group = num_heads // num_kv_heads
        slice_heads = min(num_kv_heads, -(-SLICE_BYTES // (head_dim * size)))
        num_slices = -(-num_kv_heads // slice_heads)
        lengths = batch.seq_lens_host[:num_seqs]
        max_partitions = -(-max(lengths) // PARTITION)
        self._reserve(
            num_seqs * num_kv_heads * max_partitions * group * (head_dim + 2), num_seqs * num_slices
        )
        block_stride, value_offset, slot_stride, _, _ = kv_cache.stride()
        arguments = DecodeArguments(
            0,
            num_seqs * max_partitions * num_slices,
            query.data_ptr(),
            query.stride(0) * size,
            kv_cache.data_ptr(),
            block_stride * size,
            value_offset * size,
            slot_stride * size,
            kv_cache.shape[2],
            batch.block_tables.data_ptr(),
            batch.block_tables.stride(0) * 4,
            batch.seq_lens.data_ptr(),
            output.data_ptr(),
            self._partials.data_ptr(),
            self._finished.data_ptr(),
            max_partitions,
            num_kv_heads,
            slice_heads,
            num_slices,
            num_seqs,
            sliding_window or 0,
            scale,
            soft_cap or 0.0,
        )
        read = sum(lengths) * num_kv_heads * head_dim * size * 2
        worker = _decode_worker(head_dim, group, query.dtype)
        worker.run(arguments, parallel=read >= PARALLEL_FROM)

    def _reserve(self, partials: int, slices: int) -> None:
        if self._partials.numel() < partials:
            self._partials = torch.empty(partials)
        if self._finished.numel() < slices:
            self._finished = torch.zeros(slices, dtype=torch.int64)


@njit(fastmath=FAST_MATH, error_model="numpy")
def _cap(scores: Any, scale: Any, soft_cap: Any) -> None:
    """Dot products [group, TILE] become soft-capped logits."""
    for g in range(scores.shape[0]):
        for t in range(TILE):
            scores[g, t] = soft_cap * tanh(scores[g, t] * scale / soft_cap)


@njit(error_model="numpy")
def _locate_rows(a: Any, table: Any, start: Any, count: Any, rows: Any) -> None:
    """Addresses of the keys of `count` tokens from `start` on, then a tile's worth of repeats.

    The repeats fill up the last group of `ROWS`, with next to no weight, and give the last tile's prefetch
    something to ask for.
    """
    block = start // a.block_size
    slot = start - block * a.block_size
    for t in range(count):
        rows[t] = a.kv + table[block] * a.block_stride + slot * a.slot_stride
        slot += 1
        if slot == a.block_size:
            slot = 0
            block += 1
    for t in range(count, count + TILE):
        rows[t] = rows[count - 1]


@njit(fastmath=FAST_MATH, error_model="numpy")
def _merge(partials: Any, first: Any, last: Any, sums: Any, output: Any) -> None:
    """Weigh partitions `first .. last - 1` of a head by their maxima; write the normalised [group, dim]."""
    group, dim = output.shape
    for g in range(group):
        top = NEGATIVE_INFINITY
        for part in range(first, last):
            top = max(top, partials[part, g])
        total = np.float32(0)
        sums[:] = 0
        for part in range(first, last):
            weight = exp2(partials[part, g] - top)
            total += weight * partials[part, group + g]
            at = 2 * group + g * dim
            partial = partials[part, at : at + dim]
            for d in range(dim):
                sums[d] += weight * partial[d]
        for d in range(dim):
            output[g, d] = narrow(sums[d] / total, output[g, d])


@njit(fastmath=FAST_MATH, error_model="numpy", inline="always")
def _attend_tile(
    a: Any,
    queries: Any,
    rows: Any,
    scores: Any,
    partial_at: Any,
    place: Any,
    dim: Any,
    group: Any,
    bfloat16: Any,
) -> None:
    """One step of the online softmax: a tile of tokens for the query heads of a task's KV heads.

    Rows are read whole, head after head, so that memory is read in the order in which it lies: the processor then
    asks for it ahead by itself, which a single core's own requests are too few for.

    `rows` holds the tile's key addresses and the next tile's. At `partial_at` are the first head's maxima, sums of
    weights and weighted sums of values. `place` is (tokens in the tile, first KV head of the task, its KV heads).
    """
    count, first_head, heads = place
    row_bytes = dim * (2 if bfloat16 else 4)
    queries_at, scores_at, rows_at = queries.ctypes.data, scores.ctypes.data, rows.ctypes.data
    partial_bytes = a.max_partitions * group * (dim + 2) * 4
    for t in range(0, count, ROWS):
        for h in range(heads):
            offset = (first_head + h) * row_bytes
            prefetch_rows(rows_at + (TILE + t) * 8, offset, dim, bfloat16)
            query, target = queries_at + h * group * dim * 4, scores_at + (h * group * TILE + t) * 4
            score_rows(query, rows_at + t * 8, offset, target, TILE, dim, group, bfloat16)
    factor = a.scale * LOG2_E
    if a.soft_cap > 0:
        _cap(scores, a.scale, a.soft_cap)
        factor = LOG2_E
    for h in range(heads):
        softmax_step(
            scores_at + h * group * TILE * 4, partial_at + h * partial_bytes, count, factor, TILE, dim, group
        )
    for t in range(0, count, ROWS):
        for h in range(heads):
            offset = (first_head + h) * row_bytes + a.value_offset
            prefetch_rows(rows_at + (TILE + t) * 8, offset, dim, bfloat16)
            sums = partial_at + h * partial_bytes + 2 * group * 4
            weights = scores_at + (h * group * TILE + t) * 4
            add_rows(sums, rows_at + t * 8, offset, weights, TILE, dim, group, bfloat16)


@njit(error_model="numpy", inline="always")
def _find_work(a: Any, task: Any) -> Any:
    """What a task number stands for: sequence, its oldest visible token and length, partition, slice."""
    slice_ = task % a.num_slices
    part = task // a.num_slices % a.max_partitions
    seq = task // a.num_slices // a.max_partitions
    length = carray(pointer_at(a.seq_lens), ANY_LENGTH, np.int32)[seq]
    oldest = max(0, length - a.window) if a.window > 0 else 0
    return seq, oldest, length, part, slice_


@cache
def _decode_worker(dim: int, group: int, dtype: torch.dtype) -> Worker:
    """Compile, or load from the cache on disk, the worker for one head size and group of query heads."""
    element = ELEMENTS[dtype]
    bfloat16 = int(dtype == torch.bfloat16)
    group_bytes = group * dim * dtype.itemsize
    partial_size = group * (dim + 2)

    @cfunc(worker_signature(DecodeArguments), cache=True, fastmath=FAST_MATH, error_model="numpy")
    def decode(pointer: Any) -> None:
        arguments = carray(pointer, 1)
        a = arguments[0]
        queries = np.empty((a.slice_heads * group, dim), np.float32)
        scores = np.empty((a.slice_heads * group, TILE), np.float32)
        merged = np.empty(dim, np.float32)
        rows = np.empty(PARTITION + TILE, np.int64)
        shape = (a.num_seqs, a.num_kv_heads, a.max_partitions, partial_size)
        partials = carray(pointer_at(a.partials), shape, np.float32)
        while True:
            task = draw_task(arguments)
            if task >= a.num_tasks:
                break
            seq, oldest, length, part, slice_ = _find_work(a, task)
            start, end = max(part * PARTITION, oldest), min(part * PARTITION + PARTITION, length)
            if start >= end:
                continue
            table = carray(pointer_at(a.tables + seq * a.table_stride), ANY_LENGTH, np.int32)
            _locate_rows(a, table, start, end - start, rows)
            first_head = slice_ * a.slice_heads
            heads = min(a.slice_heads, a.num_kv_heads - first_head)
            for head in range(first_head, first_head + heads):
                partials[seq, head, part, :group] = NEGATIVE_INFINITY
                partials[seq, head, part, group:] = 0
            source = a.query + seq * a.query_stride + first_head * group_bytes
            query = carray(pointer_at(source), (heads * group, dim), element)
            for g in range(heads * group):
                for d in range(dim):
                    queries[g, d] = widen(query[g, d])
            partial_at = partials[seq, first_head, part].ctypes.data
            for tile in range(0, end - start, TILE):
                place = (min(TILE, end - start - tile), first_head, heads)
                _attend_tile(a, queries, rows[tile:], scores, partial_at, place, dim, group, bfloat16)
            first_part, last_part = oldest // PARTITION, (length - 1) // PARTITION + 1
            finished = a.finished + (seq * a.num_slices + slice_) * 8
            if fetch_and_add(finished, 1) + 1 == last_part - first_part:
                fetch_and_add(finished, first_part - last_part)
                for head in range(first_head, first_head + heads):
                    target = a.output + (seq * a.num_kv_heads + head) * group_bytes
                    output = carray(pointer_at(target), (group, dim), element)
                    _merge(partials[seq, head], first_part, last_part, merged, output)

    return Worker(decode)
