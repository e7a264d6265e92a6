"""Building LLVM vectors of float32 by hand: loads, stores, and the like.

Vectors have 16 lanes, or as many as divide a row's length; LLVM maps them to what the processor has. Addresses are
int64 values of the function that is being built, indexes count elements from there and are known when it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

FLOAT = ir.FloatType()
INT16 = ir.IntType(16)
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)

_CONTRACT = ("contract", "nsz")

# Taylor series of 2**f at 0 for |f| <= 1/2, highest power first; see `scalars.exp2`.
_EXP2 = (
    1.5403530393381610e-4,
    1.3333558146428443e-3,
    9.6181291076284770e-3,
    5.5504108664821580e-2,
    2.4022650695910072e-1,
    6.9314718055994530e-1,
    1.0,
)


def lanes(length: int) -> int:
    """Floats in one vector, at least 4: the length must be a multiple of that."""
    return math.gcd(length, 16)


def load(builder: Any, address: Any, index: int, width: int, *, bfloat16: bool = False) -> Any:
    """`width` elements from `index` on, as float32 lanes."""
    element, size = (INT16, 2) if bfloat16 else (FLOAT, 4)
    pointer = builder.inttoptr(
        builder.add(address, INT64(index * size)), ir.VectorType(element, width).as_pointer()
    )
    vector = builder.load(pointer, align=size)
    if not bfloat16:
        return vector
    wide = ir.VectorType(INT32, width)
    shifted = builder.shl(builder.zext(vector, wide), ir.Constant(wide, [16] * width))
    return builder.bitcast(shifted, ir.VectorType(FLOAT, width))


def store(builder: Any, vector: Any, address: Any, index: int) -> None:
    """Put float32 lanes from `index` on."""
    pointer = builder.inttoptr(builder.add(address, INT64(index * 4)), vector.type.as_pointer())
    builder.store(vector, pointer, align=4)


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once where the processor can."""
    return builder.fadd(builder.fmul(a, b, flags=_CONTRACT), c, flags=_CONTRACT)


def splat(builder: Any, scalar: Any, width: int) -> Any:
    """A vector with the same value in each lane."""
    vector = ir.VectorType(scalar.type, width)
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, INT32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INT32, width), [0] * width))


def broadcast(builder: Any, address: Any, index: int, width: int) -> Any:
    """The float32 at `index` in each lane."""
    pointer = builder.inttoptr(builder.add(address, INT64(index * 4)), FLOAT.as_pointer())
    return splat(builder, builder.load(pointer), width)


def constant(vector: Any, value: float) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def reduce_lanes(builder: Any, vectors: list[Any], combine: Callable[[Any, Any, Any], Any]) -> Any:
    """All lanes of some vectors combined into a vector of one, pairwise."""
    while len(vectors) > 1:
        vectors = [combine(builder, *pair) for pair in zip(vectors[::2], vectors[1::2], strict=True)]
    [vector] = vectors
    while vector.type.count > 1:
        half = vector.type.count // 2
        low, high = (
            builder.shuffle_vector(
                vector, vector, ir.Constant(ir.VectorType(INT32, half), list(range(start, start + half)))
            )
            for start in (0, half)
        )
        vector = combine(builder, low, high)
    return vector


def exp2(builder: Any, x: Any) -> Any:
    """As `scalars.exp2`, of a vector."""
    vector = x.type
    integers = ir.VectorType(INT32, vector.count)
    x = larger(builder, x, constant(vector, -126.0))
    x = builder.select(builder.fcmp_ordered("<", x, constant(vector, 127.0)), x, constant(vector, 127.0))
    nearest = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector]), f"llvm.nearbyint.v{vector.count}f32"
    )
    whole = builder.call(nearest, [x])
    fraction = builder.fsub(x, whole)
    power = constant(vector, _EXP2[0])
    for coefficient in _EXP2[1:]:
        power = fused(builder, power, fraction, constant(vector, coefficient))
    exponent = builder.add(builder.fptosi(whole, integers), ir.Constant(integers, [127] * vector.count))
    two_to_whole = builder.bitcast(builder.shl(exponent, ir.Constant(integers, [23] * vector.count)), vector)
    return builder.fmul(power, two_to_whole)


def rescale(builder: Any, base: Any, start: int, length: int, factor: Any) -> None:
    width = lanes(length)
    factors = splat(builder, builder.extract_element(factor, INT32(0)), width)
    for index in range(start, start + length, width):
        store(builder, builder.fmul(load(builder, base, index, width), factors), base, index)
