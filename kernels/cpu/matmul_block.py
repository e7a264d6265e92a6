"""Vector code for a tile of a matrix product: up to six rows times 64 columns, in bfloat16 with float32 sums.

The processor's own instruction (AVX512-BF16's `vdpbf16ps`) multiplies 32 pairs and adds them to 16 sums. Six rows of
four such vectors are 24 of the 32 registers: more than its latency asks for, and the rest hold weights and inputs.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from pageport.kernels.cpu.vectors import FLOAT, INT16, INT32, INT64, load, splat, store

ROWS = 6
COLUMNS = 64
_LANES = 16
_VECTORS = COLUMNS // _LANES
_PAIR_BYTES = COLUMNS * 4  # of one pair of rows of the packed matrix

# What becomes of the sums: bfloat16; the same numbers in float32; float32 as they are.
NARROW, WIDE, EXACT = 0, 1, 2


class _BFloat16(ir.Type):  # type: ignore[misc]  # llvmlite has no annotations
    """LLVM's `bfloat`, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


SUMS = ir.VectorType(FLOAT, _LANES)
_WORDS = ir.VectorType(INT32, _LANES)
PAIRS = ir.VectorType(_BFloat16(), 2 * _LANES)


@intrinsic(prefer_literal=True)
def multiply_block(
    typing_context: Any,
    x: Any,
    x_stride: Any,
    matrix: Any,
    bias: Any,
    y: Any,
    y_stride: Any,
    pairs: Any,
    rows: Any,
    result: Any,
    adds: Any,
) -> Any:
    """`rows` rows of y [rows, 64] = x [rows, 2 * pairs] @ matrix + bias, each sum in the order of `x`'s columns.

    Args (int64; addresses, and strides in bytes; the last three compile-time constants):
        x: bfloat16.
        matrix: bfloat16 [pairs, 64, 2].
        bias: float32 [64].
        y: bfloat16 or float32, as `result` says: NARROW, WIDE or EXACT.
        adds: 1: the sums start from y (with EXACT only), and there is no bias.
    """
    count, kind, is_added = rows.literal_value, result.literal_value, bool(adds.literal_value)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, x_stride, matrix, bias, y, y_stride, pairs = arguments[:7]
        inputs = [builder.add(x, builder.mul(x_stride, INT64(row))) for row in range(count)]
        targets = [builder.add(y, builder.mul(y_stride, INT64(row))) for row in range(count)]
        start = [_load_row(builder, row) for row in (targets if is_added else [bias])]
        sums = _loop(builder, inputs, matrix, start if is_added else start * count, pairs)
        for target, row in zip(targets, sums, strict=True):
            for vector, total in enumerate(row):
                if kind == EXACT:
                    store(builder, total, target, vector * _LANES)
                else:
                    round_and_store(builder, total, target, vector, kind == WIDE)
        return context.get_dummy_value()

    integers = (types.int64,) * 7
    return types.void(*integers, rows, result, adds), generate


def _load_row(builder: Any, address: Any) -> list[Any]:
    return [load(builder, address, vector * _LANES, _LANES) for vector in range(_VECTORS)]


def _loop(
    builder: Any, inputs: list[Any], matrix: Any, start: list[list[Any]], pairs: Any
) -> list[list[Any]]:
    """The sums [row][vector] over all pairs of columns of the inputs, at least one, from `start` [row][vector] on."""
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(INT64)
    sums = [[builder.phi(SUMS) for _ in range(_VECTORS)] for _ in inputs]
    address = builder.add(matrix, builder.mul(index, INT64(_PAIR_BYTES)))
    weights = [load_pairs(builder, address, vector) for vector in range(_VECTORS)]
    new = []
    for row, row_sums in zip(inputs, sums, strict=True):
        value = splat_pair(builder, row, index)
        new.append(
            [dot(builder, total, value, weight) for total, weight in zip(row_sums, weights, strict=True)]
        )
    following = builder.add(index, INT64(1))
    index.add_incoming(INT64(0), before)
    index.add_incoming(following, loop)
    for row_sums, row_start, row_new in zip(sums, start, new, strict=True):
        for total, first, later in zip(row_sums, row_start, row_new, strict=True):
            total.add_incoming(first, before)
            total.add_incoming(later, loop)
    builder.cbranch(builder.icmp_signed("<", following, pairs), loop, after)
    builder.position_at_end(after)
    return new


def dot(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """total + the products of 16 pairs of pairs."""
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(SUMS, [SUMS, PAIRS, PAIRS]), "llvm.x86.avx512bf16.dpbf16ps.512"
    )
    return builder.call(function, [total, a, b])


def splat_pair(builder: Any, row: Any, index: Any) -> Any:
    """The pair of inputs number `index` of the row at an address, 16 times."""
    pointer = builder.inttoptr(builder.add(row, builder.mul(index, INT64(4))), INT32.as_pointer())
    return builder.bitcast(splat(builder, builder.load(pointer), _LANES), PAIRS)


def load_pairs(builder: Any, address: Any, vector: int) -> Any:
    pointer = builder.inttoptr(builder.add(address, INT64(vector * _LANES * 4)), _WORDS.as_pointer())
    return builder.bitcast(builder.load(pointer, align=64), PAIRS)


def round_to_bfloat16(builder: Any, values: Any) -> Any:
    """16 float32 to bfloat16, to the nearest and ties to even, as 16-bit integers."""
    shape = ir.FunctionType(ir.VectorType(_BFloat16(), _LANES), [SUMS])
    narrow = cgutils.get_or_insert_function(builder.module, shape, "llvm.x86.avx512bf16.cvtneps2bf16.512")
    return builder.bitcast(builder.call(narrow, [values]), ir.VectorType(INT16, _LANES))


def round_and_store(builder: Any, sums: Any, target: Any, vector: int, is_wide: bool) -> None:
    """Round to bfloat16; `is_wide`: store it as float32."""
    value = round_to_bfloat16(builder, sums)
    size = 2
    if is_wide:
        value = builder.shl(builder.zext(value, _WORDS), ir.Constant(_WORDS, [16] * _LANES))
        size = 4
    pointer = builder.inttoptr(builder.add(target, INT64(vector * _LANES * size)), value.type.as_pointer())
    builder.store(value, pointer, align=size)
