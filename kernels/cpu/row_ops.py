"""What a layer does to each token's row on its own: RMS norm with residual, SwiGLU.

A row's result does not depend on how many rows there are, nor on the thread that computes it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit

from pageport.kernels.cpu.scalars import (
    ELEMENTS,
    FAST_MATH,
    LOG2_E,
    draw_task,
    exp2,
    narrow,
    pointer_at,
    widen,
)
from pageport.kernels.cpu.threads import Worker, define_arguments, worker_signature

ROWS_PER_TASK = 8

# Elements from which a second thread pays for its launch, where threads spin for a moment before they sleep: 64 rows of
# 2 x 1,536 take 14 µs instead of 23, 16 rows 6 instead of 8. One that sleeps takes 40 µs to wake.
PARALLEL_FROM = 24_576

NormArguments = define_arguments(
    "NormArguments", ("rows", "width", "x", "residual", "weight", "output"), floats=("eps",)
)
SwigluArguments = define_arguments("SwigluArguments", ("rows", "width", "gate_up", "output"))


def rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Normalise the last dimension of `x`, or of `residual` after adding `x` into it; all contiguous."""
    output = torch.empty_like(x)
    width = x.shape[-1]
    rows = x.numel() // width
    arguments = NormArguments(
        0,
        -(-rows // ROWS_PER_TASK),
        rows,
        width,
        x.data_ptr(),
        0 if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        output.data_ptr(),
        eps,
    )
    _norm_worker(x.dtype).run(arguments, parallel=rows * width >= PARALLEL_FROM)
    return output


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2 I], contiguous -> [T, I]."""
    rows, double = gate_up.shape
    width = double // 2
    output = torch.empty((rows, width), dtype=gate_up.dtype)
    arguments = SwigluArguments(
        0, -(-rows // ROWS_PER_TASK), rows, width, gate_up.data_ptr(), output.data_ptr()
    )
    _swiglu_worker(gate_up.dtype).run(arguments, parallel=rows * width >= PARALLEL_FROM)
    return output


@njit(fastmath=FAST_MATH, error_model="numpy", inline="always")
def _add(x: Any, residual: Any, wide: Any) -> None:
    """residual += x, rounded to the rows' type; the sum is left in float32 too."""
    for i in range(len(wide)):
        total = narrow(widen(residual[i]) + widen(x[i]), residual[i])
        residual[i] = total
        wide[i] = widen(total)


@njit(fastmath=FAST_MATH, error_model="numpy", inline="always")
def _normalise(wide: Any, weight: Any, eps: Any, output: Any) -> None:
    """As Hugging Face does: normalise in float32, round to the rows' type, then multiply by the weight."""
    square = np.float32(0)
    for i in range(len(wide)):
        square += wide[i] * wide[i]
    inverse = np.float32(1) / np.sqrt(square / np.float32(len(wide)) + eps)
    for i in range(len(wide)):
        rounded = narrow(wide[i] * inverse, output[i])
        output[i] = narrow(widen(rounded) * widen(weight[i]), output[i])


@cache
def _norm_worker(dtype: torch.dtype) -> Worker:
    element = ELEMENTS[dtype]

    @cfunc(worker_signature(NormArguments), cache=True, fastmath=FAST_MATH, error_model="numpy")
    def norm(pointer: Any) -> None:
        arguments = carray(pointer, 1)
        a = arguments[0]
        shape = (a.rows, a.width)
        x = carray(pointer_at(a.x), shape, element)
        residual = carray(pointer_at(a.residual), shape, element)
        weight = carray(pointer_at(a.weight), a.width, element)
        output = carray(pointer_at(a.output), shape, element)
        wide = np.empty(a.width, np.float32)
        while True:
            task = draw_task(arguments)
            if task >= a.num_tasks:
                break
            for row in range(task * ROWS_PER_TASK, min((task + 1) * ROWS_PER_TASK, a.rows)):
                if a.residual != 0:
                    _add(x[row], residual[row], wide)
                else:
                    for i in range(a.width):
                        wide[i] = widen(x[row, i])
                _normalise(wide, weight, a.eps, output[row])

    return Worker(norm)


@cache
def _swiglu_worker(dtype: torch.dtype) -> Worker:
    element = ELEMENTS[dtype]

    @cfunc(worker_signature(SwigluArguments), cache=True, fastmath=FAST_MATH, error_model="numpy")
    def swiglu(pointer: Any) -> None:
        arguments = carray(pointer, 1)
        a = arguments[0]
        gate_up = carray(pointer_at(a.gate_up), (a.rows, 2, a.width), element)
        output = carray(pointer_at(a.output), (a.rows, a.width), element)
        while True:
            task = draw_task(arguments)
            if task >= a.num_tasks:
                break
            for row in range(task * ROWS_PER_TASK, min((task + 1) * ROWS_PER_TASK, a.rows)):
                gate, up, target = gate_up[row, 0], gate_up[row, 1], output[row]
                for i in range(a.width):
                    x = widen(gate[i])
                    silu = x / (np.float32(1) + exp2(-x * LOG2_E))
                    target[i] = narrow(silu * widen(up[i]), target[i])

    return Worker(swiglu)
