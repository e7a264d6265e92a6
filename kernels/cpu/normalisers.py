"""What turns a row of logits into log-probabilities: its largest, and the logarithm of the sum of its exponentials."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc, njit

from pageport.kernels.cpu.row_ops import PARALLEL_FROM
from pageport.kernels.cpu.scalars import FAST_MATH, LOG2_E, draw_task, exp2, pointer_at
from pageport.kernels.cpu.threads import Worker, define_arguments, worker_signature

LANES = 64

NormaliserArguments = define_arguments(
    "NormaliserArguments", ("rows", "width", "stride", "x", "peaks", "log_totals")
)


def normalisers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 [N, V], dense rows without NaN -> float32 [N] twice: the peaks, and log(sum(exp(x - peak)))."""
    rows, width = x.shape
    peaks, log_totals = torch.empty((2, rows), dtype=torch.float32)
    arguments = NormaliserArguments(
        0, rows, rows, width, x.stride(0), x.data_ptr(), peaks.data_ptr(), log_totals.data_ptr()
    )
    _worker().run(arguments, parallel=rows * width >= PARALLEL_FROM)
    return peaks, log_totals


@njit(error_model="numpy", inline="always")
def _largest(row: Any, tops: Any) -> Any:
    """The largest element, by way of `tops`, float32 [LANES]: one maximum alone would wait for itself each time."""
    tops[:] = row[0]
    whole = len(row) // LANES * LANES
    for start in range(0, whole, LANES):
        for lane in range(LANES):
            if row[start + lane] > tops[lane]:
                tops[lane] = row[start + lane]
    for i in range(whole, len(row)):
        if row[i] > tops[0]:
            tops[0] = row[i]
    return tops.max()


@njit(fastmath=FAST_MATH, error_model="numpy", inline="always")
def _sum_of_exponentials(row: Any, peak: Any) -> Any:
    total = np.float32(0)
    for i in range(len(row)):
        total += exp2((row[i] - peak) * LOG2_E)
    return total


@cache
def _worker() -> Worker:
    @cfunc(worker_signature(NormaliserArguments), cache=True, fastmath=FAST_MATH, error_model="numpy")
    def normalise(pointer: Any) -> None:
        arguments = carray(pointer, 1)
        a = arguments[0]
        peaks = carray(pointer_at(a.peaks), a.rows, np.float32)
        log_totals = carray(pointer_at(a.log_totals), a.rows, np.float32)
        tops = np.empty(LANES, np.float32)
        while True:
            row = draw_task(arguments)
            if row >= a.num_tasks:
                break
            x = carray(pointer_at(a.x + row * a.stride * 4), a.width, np.float32)
            peak = _largest(x, tops)
            peaks[row] = peak
            log_totals[row] = np.log(_sum_of_exponentials(x, peak))

    return Worker(normalise)
