"""Scalar building blocks of the compiled kernels; LLVM turns each into vector instructions in a loop.

Numba has no bfloat16, so such numbers travel as uint16: the upper half of a float32's bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

FLOAT = ir.FloatType()
INT16 = ir.IntType(16)
INT32 = ir.IntType(32)

# Reordering sums and fusing multiply-adds is what lets a dot product vectorise. NaN and infinity keep
# their meaning: masked logits are -inf.
FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}

# How Numba sees the elements of a tensor.
ELEMENTS: dict[torch.dtype, type[np.generic]] = {torch.float32: np.float32, torch.bfloat16: np.uint16}

ANY_LENGTH = 1 << 30  # of arrays made from an address, whose length nobody checks

LOG2_E = np.float32(1.4426950408889634)


@intrinsic
def pointer_at(typing_context: Any, address: Any) -> Any:
    """Turn an address (int64) into a void pointer for `numba.carray`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def fetch_and_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Atomically add to the int64 at an address; return what stood there before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def widen(typing_context: Any, value: Any) -> Any:
    """A float32 from an element of a row: bfloat16 bits (uint16), or a float32 already."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if value == types.float32:
            return arguments[0]
        return builder.bitcast(builder.shl(builder.zext(arguments[0], INT32), INT32(16)), FLOAT)

    return types.float32(value), generate


@intrinsic
def narrow(typing_context: Any, value: Any, like: Any) -> Any:
    """A float32 as an element of the same type as `like`.

    bfloat16 bits (uint16) are rounded to the nearest, ties to even; NaN stays NaN.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = arguments[0]
        if like == types.float32:
            return number
        bits = builder.bitcast(number, INT32)
        lowest_kept = builder.and_(builder.lshr(bits, INT32(16)), INT32(1))
        rounded = builder.add(bits, builder.add(lowest_kept, INT32(0x7FFF)))
        is_nan = builder.fcmp_unordered("uno", number, number)
        kept = builder.select(is_nan, INT32(0x7FC00000), rounded)
        return builder.trunc(builder.lshr(kept, INT32(16)), INT16)

    return like(types.float32, like), generate


@intrinsic
def _round_to_integer(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = builder.module.declare_intrinsic("llvm.nearbyint", [FLOAT])
        return builder.call(function, arguments)

    return types.float32(types.float32), generate


@intrinsic
def _power_of_two(typing_context: Any, exponent: Any) -> Any:
    """2 to an integral float32 between -126 and 127, by writing the exponent's bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        biased = builder.add(builder.fptosi(arguments[0], INT32), INT32(127))
        return builder.bitcast(builder.shl(biased, INT32(23)), FLOAT)

    return types.float32(types.float32), generate


@njit(inline="always")
def draw_task(arguments: Any) -> Any:
    """The number of the next piece of work, from the counter that a worker's arguments [1] begin with."""
    return fetch_and_add(arguments.ctypes.data, 1)


@njit(fastmath=FAST_MATH, inline="always")
def exp2(x: Any) -> Any:
    """2 to the x, relative error under 3e-7; below -126 it stays at 2**-126, above 127 at about 2**127."""
    x = min(max(x, np.float32(-126.0)), np.float32(127.0))
    whole = _round_to_integer(x)
    f = x - whole
    # Taylor series of 2**f at 0: the first term left out is 1.5e-5 * f**7 < 1.2e-7 for |f| <= 1/2.
    p = np.float32(1.5403530393381610e-4)
    p = p * f + np.float32(1.3333558146428443e-3)
    p = p * f + np.float32(9.6181291076284770e-3)
    p = p * f + np.float32(5.5504108664821580e-2)
    p = p * f + np.float32(2.4022650695910072e-1)
    p = p * f + np.float32(6.9314718055994530e-1)
    p = p * f + np.float32(1.0)
    return p * _power_of_two(whole)


@njit(fastmath=FAST_MATH, inline="always")
def tanh(x: Any) -> Any:
    """Hyperbolic tangent, absolute error under 5e-7."""
    return np.float32(1.0) - np.float32(2.0) / (exp2(np.float32(2.0) * LOG2_E * x) + np.float32(1.0))
