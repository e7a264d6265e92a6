"""Vector code for a tile of a product with a quantised matrix: up to six rows times 64 columns."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pageport.kernels.cpu.code_vectors import PAIR_ELEMENTS, load_codes
from pageport.kernels.cpu.matmul_block import (
    COLUMNS,
    PAIRS,
    SUMS,
    dot,
    load_pairs,
    round_and_store,
    splat_pair,
)
from pageport.kernels.cpu.vectors import FLOAT, INT64, broadcast, fused, load

ROWS = 6
GROUP = 32  # rows of the matrix that share a scale and a minimum
_LANES = 16
_PAIRS = GROUP // 2
_VECTORS = COLUMNS // _LANES
_HALVES = ir.VectorType(ir.HalfType(), _LANES)

SCALES_BYTES = 2 * 2 * COLUMNS  # of a group's float16 scales [64] and minima [64]
GROUP_ELEMENTS = GROUP * COLUMNS


@intrinsic(prefer_literal=True)
def expand_group(typing_context: Any, codes: Any, target: Any, bits: Any) -> Any:
    """A group's codes as bfloat16 [16, 64, 2].

    Args (int64 addresses; `bits` 4 or 8, a compile-time constant).
    """
    width = bits.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, target = arguments[:2]
        with cgutils.for_range(builder, INT64(_PAIRS), intp=INT64) as loop:
            source = builder.add(codes, builder.mul(loop.index, INT64(PAIR_ELEMENTS * width // 8)))
            place = builder.add(target, builder.mul(loop.index, INT64(PAIR_ELEMENTS * 2)))
            for index, vector in enumerate(load_codes(builder, source, width)):
                pointer = builder.inttoptr(builder.add(place, INT64(index * 64)), vector.type.as_pointer())
                builder.store(vector, pointer, align=64)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, bits), generate


@intrinsic(prefer_literal=True)
def multiply_groups(
    typing_context: Any,
    x: Any,
    x_stride: Any,
    x_sums: Any,
    groups: Any,
    scales: Any,
    scales_stride: Any,
    codes: Any,
    codes_stride: Any,
    bias: Any,
    y: Any,
    y_stride: Any,
    rows: Any,
    bits: Any,
    wide: Any,
) -> Any:
    """`rows` rows of y [rows, 64] = x [rows, 32 * groups] @ matrix + bias.

    Codes are summed up group by group, exactly but for the rounding of float32 sums, then scaled.

    Args (int64: addresses, and strides in bytes; the last three compile-time constants):
        x: bfloat16.
        x_sums: float32 [rows, groups], the sums of x over each group.
        scales: of the first group: float16 scales [64], float16 minima [64].
        codes: of the first group, packed, or bfloat16 [16, 64, 2] where `bits` is 16.
        bias: float32 [64].
        y: bfloat16, or float32 if `wide`, then rounded to bfloat16 all the same.
    """
    count, width, is_wide = rows.literal_value, bits.literal_value, bool(wide.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_stride, x_sums, groups, scales, scales_stride, codes, codes_stride, bias, y, y_stride = (
            arguments[:11]
        )
        inputs = [builder.add(x, builder.mul(x_stride, INT64(row))) for row in range(count)]
        sums_of_rows = [builder.add(x_sums, builder.mul(groups, INT64(row * 4))) for row in range(count)]
        totals = [
            [
                cgutils.alloca_once_value(builder, load(builder, bias, vector * _LANES, _LANES))
                for vector in range(_VECTORS)
            ]
            for _ in range(count)
        ]
        with cgutils.for_range(builder, groups, intp=INT64) as loop:
            group = loop.index
            here = [builder.add(row, builder.mul(group, INT64(GROUP * 2))) for row in inputs]
            sums = _sum_group(builder, here, builder.add(codes, builder.mul(group, codes_stride)), width)
            record = builder.add(scales, builder.mul(group, scales_stride))
            shares = [
                broadcast(builder, builder.add(row, builder.mul(group, INT64(4))), 0, _LANES)
                for row in sums_of_rows
            ]
            for vector in range(_VECTORS):
                scale = _load_halves(builder, record, vector * _LANES)
                minimum = _load_halves(builder, record, COLUMNS + vector * _LANES)
                for row in range(count):
                    total = builder.load(totals[row][vector])
                    total = fused(builder, sums[row][vector], scale, total)
                    builder.store(fused(builder, shares[row], minimum, total), totals[row][vector])
        for row in range(count):
            target = builder.add(y, builder.mul(y_stride, INT64(row)))
            for vector in range(_VECTORS):
                round_and_store(builder, builder.load(totals[row][vector]), target, vector, is_wide)
        return context.get_dummy_value()

    integers = (types.int64,) * 11
    return types.void(*integers, rows, bits, wide), generate


def _sum_group(builder: Any, inputs: list[Any], codes: Any, width: int) -> list[list[Any]]:
    """Dot products [row][vector] of the inputs with one group's codes."""
    zero = ir.Constant(SUMS, [0.0] * _LANES)
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(INT64)
    sums = [[builder.phi(SUMS) for _ in range(_VECTORS)] for _ in inputs]
    address = builder.add(codes, builder.mul(index, INT64(PAIR_ELEMENTS * width // 8)))
    if width == 16:
        weights = [load_pairs(builder, address, vector) for vector in range(_VECTORS)]
    else:
        weights = [builder.bitcast(vector, PAIRS) for vector in load_codes(builder, address, width)]
    new = []
    for row, row_sums in zip(inputs, sums, strict=True):
        value = splat_pair(builder, row, index)
        new.append(
            [dot(builder, total, value, weight) for total, weight in zip(row_sums, weights, strict=True)]
        )
    following = builder.add(index, INT64(1))
    index.add_incoming(INT64(0), before)
    index.add_incoming(following, loop)
    for row_sums, row_new in zip(sums, new, strict=True):
        for total, later in zip(row_sums, row_new, strict=True):
            total.add_incoming(zero, before)
            total.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, INT64(_PAIRS)), loop, after)
    builder.position_at_end(after)
    return new


def _load_halves(builder: Any, address: Any, index: int) -> Any:
    pointer = builder.inttoptr(builder.add(address, INT64(index * 2)), _HALVES.as_pointer())
    return builder.fpext(builder.load(pointer, align=2), ir.VectorType(FLOAT, _LANES))
