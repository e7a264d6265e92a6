"""Vector code for one tile of a chunk's attention: 64 tokens of one KV head, packed for `matmul_block`, and the softmax
between its two products."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pageport.kernels.cpu.matmul_block import round_to_bfloat16
from pageport.kernels.cpu.vectors import (
    INT16,
    INT32,
    INT64,
    constant,
    exp2,
    fused,
    larger,
    load,
    reduce_lanes,
    rescale,
    splat,
    store,
)

TILE = 64
_WIDTH = 16


@intrinsic(prefer_literal=True)
def pack_keys(typing_context: Any, rows: Any, offset: Any, target: Any, dim: Any) -> Any:
    """Turn the keys of a tile into bfloat16 [dim / 2, 64, 2] at `target`: squares of 16 pairs are transposed.

    Args (int64; the last a compile-time constant):
        rows: address of 64 int64, the addresses of the tokens; `offset` is added to each.
        dim: a multiple of 32.
    """
    head_dim = dim.literal_value
    words = ir.VectorType(INT32, _WIDTH)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, offset, target, _ = arguments
        for first in range(0, TILE, _WIDTH):
            keys = [builder.add(_row(builder, rows, first + t), offset) for t in range(_WIDTH)]
            for start in range(0, head_dim // 2, _WIDTH):
                square = [_load_as(builder, key, start * 4, words) for key in keys]
                for pair, column in enumerate(_transpose(builder, square)):
                    place = ((start + pair) * TILE + first) * 4
                    _store_as(builder, column, target, place)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, dim), generate


@intrinsic(prefer_literal=True)
def pack_values(typing_context: Any, rows: Any, offset: Any, target: Any, dim: Any) -> Any:
    """Turn the values of a tile into bfloat16 [dim / 64, 32, 64, 2] at `target`: two tokens side by side.

    Args: as of `pack_keys`; dim: a multiple of 64.
    """
    head_dim = dim.literal_value
    halves = ir.VectorType(INT16, 2 * _WIDTH)
    low, high = (
        ir.Constant(
            ir.VectorType(INT32, 2 * _WIDTH),
            [lane + side for lane in range(start, start + _WIDTH) for side in (0, 2 * _WIDTH)],
        )
        for start in (0, _WIDTH)
    )

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, offset, target, _ = arguments
        for pair in range(TILE // 2):
            first, second = (builder.add(_row(builder, rows, 2 * pair + side), offset) for side in (0, 1))
            for start in range(0, head_dim, 2 * _WIDTH):
                a, b = (_load_as(builder, token, start * 2, halves) for token in (first, second))
                stripe, column = divmod(start, TILE)
                place = ((stripe * TILE // 2 + pair) * TILE + column) * 4
                _store_as(builder, builder.shuffle_vector(a, b, low), target, place)
                _store_as(builder, builder.shuffle_vector(a, b, high), target, place + _WIDTH * 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, dim), generate


@intrinsic(prefer_literal=True)
def softmax_row(
    typing_context: Any,
    scores: Any,
    weights: Any,
    state: Any,
    total: Any,
    low: Any,
    high: Any,
    scale: Any,
    dim: Any,
) -> Any:
    """One step of a row's online softmax: weights 2**(score * scale - maximum) of a tile, and what was summed before
    rescaled. What the row does not see has no effect on any bit.

    Args (int64, but `scale`, float32; the last a compile-time constant):
        scores: address of float32 [64]: dot products.
        weights: address of bfloat16 [64]: results; 0 where the row does not see.
        state: address of float32 [2]: maximum (any finite number below all logits at first) and sum of weights.
        total: address of float32 [dim]: weighted sum of values.
        low, high: the row sees the tokens `low .. high - 1` of the tile.
    """
    head_dim = dim.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, weights, state, total, low, high, factor = arguments[:7]
        masks = _visible_lanes(builder, low, high)
        factors = splat(builder, factor, _WIDTH)
        before = load(builder, state, 0, 1)
        vectors = range(0, TILE, _WIDTH)
        logits = [builder.fmul(load(builder, scores, start, _WIDTH), factors) for start in vectors]
        logits = [
            builder.select(mask, logit, constant(logit.type, float("-inf")))
            for mask, logit in zip(masks, logits, strict=True)
        ]
        top = larger(builder, reduce_lanes(builder, logits, larger), before)
        tops = splat(builder, builder.extract_element(top, INT32(0)), _WIDTH)
        results = [
            builder.select(mask, exp2(builder, builder.fsub(logit, tops)), constant(logit.type, 0.0))
            for mask, logit in zip(masks, logits, strict=True)
        ]
        for index, result in enumerate(results):
            _store_as(builder, round_to_bfloat16(builder, result), weights, index * _WIDTH * 2)
        shrink = exp2(builder, builder.fsub(before, top))
        added = reduce_lanes(builder, results, lambda builder, a, b: builder.fadd(a, b))
        store(builder, top, state, 0)
        store(builder, fused(builder, load(builder, state, 1, 1), shrink, added), state, 1)
        rescale(builder, total, 0, head_dim, shrink)
        return context.get_dummy_value()

    integers = (types.int64,) * 6
    return types.void(*integers, types.float32, dim), generate


def _visible_lanes(builder: Any, low: Any, high: Any) -> list[Any]:
    """For each vector of a tile's row, which lanes are from `low` on and below `high`."""
    lows, highs = (splat(builder, builder.trunc(bound, INT32), _WIDTH) for bound in (low, high))
    masks = []
    for start in range(0, TILE, _WIDTH):
        numbers = ir.Constant(lows.type, list(range(start, start + _WIDTH)))
        from_low = builder.icmp_signed(">=", numbers, lows)
        masks.append(builder.and_(from_low, builder.icmp_signed("<", numbers, highs)))
    return masks


def _transpose(builder: Any, square: list[Any]) -> list[Any]:
    """16 vectors of 16, rows becoming columns: four rounds, each interleaves rows half the square apart."""
    shape = ir.VectorType(INT32, _WIDTH)
    low, high = (
        ir.Constant(
            shape, [lane + side for lane in range(start, start + _WIDTH // 2) for side in (0, _WIDTH)]
        )
        for start in (0, _WIDTH // 2)
    )
    for _ in range(4):
        half = len(square) // 2
        square = [
            builder.shuffle_vector(a, b, order)
            for a, b in zip(square[:half], square[half:], strict=True)
            for order in (low, high)
        ]
    return square


def _row(builder: Any, rows: Any, index: int) -> Any:
    return _load_as(builder, rows, index * 8, INT64)


def _load_as(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    pointer = builder.inttoptr(builder.add(address, INT64(offset)), kind.as_pointer())
    return builder.load(pointer, align=2)


def _store_as(builder: Any, value: Any, address: Any, offset: int) -> None:
    pointer = builder.inttoptr(builder.add(address, INT64(offset)), value.type.as_pointer())
    builder.store(value, pointer, align=2)
