"""Vector code for one step of the online softmax (Milakov and Gimelshein, arXiv:1805.02867).

Written as LLVM vectors: the loop vectoriser leaves maxima and short sums alone, so that each element waits four cycles
for the one before, and single elements written just before a vector of them is read stall the processor. It made decode
attention from the cache 1.3 times as fast (81 to 63 µs for 2,048 tokens of 3 heads of 64, one thread of a Zen 5).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pageport.kernels.cpu.vectors import (
    INT32,
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

_WIDTH = 16


@intrinsic(prefer_literal=True)
def softmax_step(
    typing_context: Any,
    scores: Any,
    partial: Any,
    count: Any,
    scale: Any,
    tile: Any,
    dim: Any,
    group: Any,
) -> Any:
    """Turn a tile's dot products into weights 2**(score * scale - maximum), and rescale what was summed before.

    Args (int64, but `scale`, float32; the last three compile-time constants):
        scores: address of float32 [group, tile]: dot products in, weights out; those from `count` on, in, are
            anything; out, next to nothing.
        partial: address of float32 [group] maxima, [group] sums of weights, [group, dim] weighted sums of values.
        tile: a multiple of 16.
    """
    num_scores, head_dim, heads = tile.literal_value, dim.literal_value, group.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        score_base, partial_base, real, factor = arguments[:4]
        masks = _real_lanes(builder, real, num_scores)
        factors = splat(builder, factor, _WIDTH)
        for g in range(heads):
            row = g * num_scores
            logits = [
                load(builder, score_base, row + start, _WIDTH) for start in range(0, num_scores, _WIDTH)
            ]
            logits = [builder.fmul(logit, factors) for logit in logits]
            logits = [
                builder.select(mask, logit, constant(logit.type, float("-inf")))
                for mask, logit in zip(masks, logits, strict=True)
            ]
            before = load(builder, partial_base, g, 1)
            top = larger(builder, reduce_lanes(builder, logits, larger), before)
            tops = splat(builder, builder.extract_element(top, INT32(0)), _WIDTH)
            weights = [exp2(builder, builder.fsub(logit, tops)) for logit in logits]
            for index, weight in enumerate(weights):
                store(builder, weight, score_base, row + index * _WIDTH)
            shrink = exp2(builder, builder.fsub(before, top))
            total = load(builder, partial_base, heads + g, 1)
            store(builder, top, partial_base, g)
            added = reduce_lanes(builder, weights, lambda builder, a, b: builder.fadd(a, b))
            store(builder, fused(builder, total, shrink, added), partial_base, heads + g)
            rescale(builder, partial_base, 2 * heads + g * head_dim, head_dim, shrink)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32, tile, dim, group), generate


def _real_lanes(builder: Any, count: Any, length: int) -> list[Any]:
    """For each vector of a row, which of its lanes are below `count`."""
    counts = splat(builder, builder.trunc(count, INT32), _WIDTH)
    numbers = [
        ir.Constant(counts.type, list(range(start, start + _WIDTH))) for start in range(0, length, _WIDTH)
    ]
    return [builder.icmp_signed("<", number, counts) for number in numbers]
