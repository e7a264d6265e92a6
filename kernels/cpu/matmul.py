"""Products of a few to some hundred rows with a bfloat16 weight matrix.

The matrix is packed once into stripes of 64 columns, two rows of it side by side as `vdpbf16ps` wants them, so that a
stripe is one stretch of memory that is read from end to end. Each result is one sum in the order of the row's elements:
its bits do not depend on the other rows, on how many there are, or on the thread.

Measured on two cores of a Zen 5 (all products of a step of a 135M Llama, oneDNN's packed weights in turn with these):
1 row 6.1 against 7.9 ms (reading 269 MB at 44 GB/s), 8 rows 7.5 against 9.2, 32 rows 12.9 against 15.8, 64 rows 21.5
against 24.8, 512 rows 150 against 156 (930 GFLOP/s).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit

from pageport.kernels.cpu.matmul_block import COLUMNS, NARROW, ROWS, WIDE, multiply_block
from pageport.kernels.cpu.scalars import draw_task
from pageport.kernels.cpu.threads import Worker, define_arguments, worker_signature

# Rows of one task, at most: enough to read a stripe from memory once, and few enough to share out.
ROWS_PER_TASK = 48

MatmulArguments = define_arguments(
    "MatmulArguments",
    (
        "rows",
        "x",
        "x_stride",  # bytes, like all strides here
        "pairs",
        "matrix",
        "bias",
        "y",
        "y_stride",
        "parts",  # the rows are shared out among so many tasks a stripe
    ),
)


class PackedMatrix:
    """`x @ weight.T + bias` for a weight that `can_pack` accepts.

    Args:
        weight: bfloat16 [N, K].
        bias: [N], or None.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        columns, width = weight.shape
        self._stripes = columns // COLUMNS
        self._width = width
        self._columns = columns
        packed = torch.empty(weight.numel() + 32, dtype=torch.bfloat16)
        skipped = -packed.data_ptr() % 64 // 2  # vectors are read at multiples of 64 bytes
        self._matrix = packed[skipped : skipped + weight.numel()]
        stripes = weight.view(self._stripes, COLUMNS, width // 2, 2)
        self._matrix.view(self._stripes, width // 2, COLUMNS, 2).copy_(stripes.transpose(1, 2))
        self._bias = torch.zeros(columns) if bias is None else bias.float().contiguous()

    def multiply(self, x: torch.Tensor, *, wide: bool = False) -> torch.Tensor:
        """bfloat16 [M, K], dense rows -> [M, N] in bfloat16; `wide`: the same numbers in float32."""
        rows = x.shape[0]
        y = torch.empty((rows, self._columns), dtype=torch.float32 if wide else torch.bfloat16)
        parts = -(-rows // ROWS_PER_TASK)
        arguments = MatmulArguments(
            0,
            self._stripes * parts,
            rows,
            x.data_ptr(),
            x.stride(0) * 2,
            self._width // 2,
            self._matrix.data_ptr(),
            self._bias.data_ptr(),
            y.data_ptr(),
            self._columns * y.itemsize,
            parts,
        )
        _worker(wide).run(arguments, parallel=True)
        return y


def multiplies_here() -> bool:
    """Whether the processor has the instruction, and nothing better."""
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16")) and not capabilities.get("amx_bf16")


def can_pack(weight: torch.Tensor) -> bool:
    """Whether the processor has the instruction, and the shape fits.

    Where it has matrix tiles as well (AMX), oneDNN's products use them and are faster.
    """
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.bfloat16
        and multiplies_here()
        and weight.shape[0] % COLUMNS == 0
        and weight.shape[1] % 2 == 0
    )


@njit(error_model="numpy", inline="always")
def multiply_rows(a: Any, row: Any, end: Any, matrix: Any, bias: Any, y: Any, result: Any) -> None:
    """Rows `row .. end - 1` of `a`'s x times one stripe, into the columns that begin at `y`."""
    for block in range(-(-(end - row) // ROWS), 0, -1):
        count = -(-(end - row) // block)
        source, target = a.x + row * a.x_stride, y + row * a.y_stride
        if count == 6:
            multiply_block(source, a.x_stride, matrix, bias, target, a.y_stride, a.pairs, 6, result, 0)
        elif count == 5:
            multiply_block(source, a.x_stride, matrix, bias, target, a.y_stride, a.pairs, 5, result, 0)
        elif count == 4:
            multiply_block(source, a.x_stride, matrix, bias, target, a.y_stride, a.pairs, 4, result, 0)
        elif count == 3:
            multiply_block(source, a.x_stride, matrix, bias, target, a.y_stride, a.pairs, 3, result, 0)
        elif count == 2:
            multiply_block(source, a.x_stride, matrix, bias, target, a.y_stride, a.pairs, 2, result, 0)
        else:
            multiply_block(source, a.x_stride, matrix, bias, target, a.y_stride, a.pairs, 1, result, 0)
        row += count


@cache
def _worker(wide: bool) -> Worker:
    """Compile, or load from the cache on disk, the worker for bfloat16 or float32 results."""
    result = WIDE if wide else NARROW
    size = 4 if wide else 2

    @cfunc(worker_signature(MatmulArguments), cache=True, error_model="numpy")
    def matmul(pointer: Any) -> None:
        arguments = carray(pointer, 1)
        a = arguments[0]
        while True:
            task = draw_task(arguments)
            if task >= a.num_tasks:
                break
            stripe = task // a.parts
            part = task - stripe * a.parts
            row, end = a.rows * part // a.parts, a.rows * (part + 1) // a.parts
            matrix = a.matrix + stripe * a.pairs * np.int64(COLUMNS * 4)
            bias = a.bias + stripe * np.int64(COLUMNS * 4)
            y = a.y + stripe * np.int64(COLUMNS * size)
            multiply_rows(a, row, end, matrix, bias, y, result)

    return Worker(matmul)
