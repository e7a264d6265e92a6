"""Vector code for four cached rows at a time: the two inner products of attention.

Written as LLVM vectors rather than left to the loop vectoriser: each row is widened once for all query
heads, and four dot products are reduced together (13 instructions for four sums instead of 32).
Vectors have 16 lanes, or as many as divide the head size; LLVM maps them to what the processor has.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pageport.kernels.cpu.vectors import FLOAT, INT32, INT64, broadcast, fused, lanes, load, store

ROWS = 4
CACHE_LINE = 64  # bytes


def _sum_lanes(builder: Any, vectors: list[Any], width: int) -> Any:
    """The sums of four vectors' lanes, as one vector of four.

    Each level adds the halves of every share of lanes, and packs two vectors into one while there are two.
    """
    share = width  # lanes that each of the four sums still has
    while share > 1:
        pairs = (
            list(zip(vectors[::2], vectors[1::2], strict=True)) if len(vectors) > 1 else [(vectors[0],) * 2]
        )
        lanes_of_pair = vectors[0].type.count * (2 if len(vectors) > 1 else 1)
        half = share // 2
        low = [start + i for start in range(0, lanes_of_pair, share) for i in range(half)]
        low_mask = ir.Constant(ir.VectorType(INT32, len(low)), low)
        high_mask = ir.Constant(ir.VectorType(INT32, len(low)), [lane + half for lane in low])
        vectors = [
            builder.fadd(builder.shuffle_vector(a, b, low_mask), builder.shuffle_vector(a, b, high_mask))
            for a, b in pairs
        ]
        share = half
    return vectors[0]


@intrinsic(prefer_literal=True)
def score_rows(
    typing_context: Any,
    queries: Any,
    rows: Any,
    offset: Any,
    scores: Any,
    stride: Any,
    dim: Any,
    group: Any,
    bfloat16: Any,
) -> Any:
    """Dot products of `group` float32 queries with four rows.

    Args (all int64; the last four compile-time constants):
        queries: address of float32 [group, dim].
        rows: address of the four rows' addresses, int64 [4]; `offset` bytes are added to each.
        scores: address of the first of four results; query g's lie `g * stride` floats further.
    """
    head_dim, heads, step = dim.literal_value, group.literal_value, stride.literal_value
    width = lanes(head_dim)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        query_base, row_table, offset, target = arguments[:4]
        row = _row_addresses(builder, row_table, offset)
        vector = ir.VectorType(FLOAT, width)
        sums = [[ir.Constant(vector, [0.0] * width) for _ in range(ROWS)] for _ in range(heads)]
        for index in range(0, head_dim, width):
            keys = [
                load(builder, address, index, width, bfloat16=bool(bfloat16.literal_value)) for address in row
            ]
            for g in range(heads):
                query = load(builder, query_base, g * head_dim + index, width)
                sums[g] = [fused(builder, query, keys[r], sums[g][r]) for r in range(ROWS)]
        for g in range(heads):
            four = _sum_lanes(builder, sums[g], width)
            store(builder, four, target, g * step)
        return context.get_dummy_value()

    return types.void(
        types.int64, types.int64, types.int64, types.int64, stride, dim, group, bfloat16
    ), generate


@intrinsic(prefer_literal=True)
def add_rows(
    typing_context: Any,
    sums: Any,
    rows: Any,
    offset: Any,
    weights: Any,
    stride: Any,
    dim: Any,
    group: Any,
    bfloat16: Any,
) -> Any:
    """Add four weighted rows into `group` float32 sums.

    Args (all int64; the last four compile-time constants):
        sums: address of float32 [group, dim].
        rows: address of the four rows' addresses, int64 [4]; `offset` bytes are added to each.
        weights: address of the first of four weights; those for sum g lie `g * stride` floats further.
    """
    head_dim, heads, step = dim.literal_value, group.literal_value, stride.literal_value
    width = lanes(head_dim)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sum_base, row_table, offset, weight_base = arguments[:4]
        row = _row_addresses(builder, row_table, offset)
        factors = [
            [broadcast(builder, weight_base, g * step + r, width) for r in range(ROWS)] for g in range(heads)
        ]
        for index in range(0, head_dim, width):
            values = [
                load(builder, address, index, width, bfloat16=bool(bfloat16.literal_value)) for address in row
            ]
            for g in range(heads):
                total = load(builder, sum_base, g * head_dim + index, width)
                for r in range(ROWS):
                    total = fused(builder, factors[g][r], values[r], total)
                store(builder, total, sum_base, g * head_dim + index)
        return context.get_dummy_value()

    return types.void(
        types.int64, types.int64, types.int64, types.int64, stride, dim, group, bfloat16
    ), generate


@intrinsic(prefer_literal=True)
def prefetch_rows(typing_context: Any, rows: Any, offset: Any, dim: Any, bfloat16: Any) -> Any:
    """Ask for four rows; arguments as of `score_rows`."""
    size = dim.literal_value * (2 if bfloat16.literal_value else 4)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        shape = ir.FunctionType(ir.VoidType(), [byte_pointer, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
        for row in _row_addresses(builder, *arguments[:2]):
            for start in range(0, size, CACHE_LINE):
                line = builder.inttoptr(builder.add(row, INT64(start)), byte_pointer)
                builder.call(function, [line, INT32(0), INT32(3), INT32(1)])  # to read, into L1, data
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, dim, bfloat16), generate


def _row_addresses(builder: Any, table: Any, offset: Any) -> list[Any]:
    pointer = builder.inttoptr(table, INT64.as_pointer())
    return [builder.add(builder.load(builder.gep(pointer, [INT64(r)])), offset) for r in range(ROWS)]
