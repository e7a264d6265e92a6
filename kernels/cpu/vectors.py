"""Building LLVM vectors of float32 by hand: loads, stores, and the like.

Vectors have 16 lanes, or as many as divide a row's length; LLVM maps them to what the processor has. Addresses are
int64 values of the function that is being built, indexes count elements from there and are known when it is.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir

FLOAT = ir.FloatType()
INT16 = ir.IntType(16)
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)

_CONTRACT = ("contract", "nsz")


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
