"""Running a compiled worker on torch's own OpenMP threads.

torch's wheel carries its own libgomp, and importing torch loads it with global visibility. Numba's `omp`
layer is linked to another copy, the system's `libgomp.so.1.0.0`: it cannot be loaded on a machine without
that file (slim containers), and shares torch's threads only because the loader happens to find torch's
copy first. Calling `GOMP_parallel` of the copy that torch brought needs no other library, always shares
torch's threads, and costs no more (microseconds per empty launch, two threads, AMD EPYC 9004):

    OMP_WAIT_POLICY     GOMP_parallel   Numba prange, omp layer   torch `add_` of 70,000 floats
    unset (spinning)    2.0             2.8                       7.6
    PASSIVE             8.6             8.5                       14.6

A worker is a C function of one pointer, its arguments. Each thread of the team runs it once; the threads
share the work by drawing task numbers from a counter in the arguments (`scalars.draw_task`), so that a
thread whose core is busy elsewhere does not hold up the others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import from_dtype, types


class Arguments(ctypes.Structure):
    """Base of the structures that carry a worker's arguments."""


def define_arguments(name: str, integers: tuple[str, ...], floats: tuple[str, ...] = ()) -> type[Arguments]:
    """Make a structure of int64 fields (addresses and sizes), then float32 fields.

    The first two are always `next_task`, which the caller sets to 0, and `num_tasks`.
    """
    fields: list[tuple[str, Any]] = [
        (field, ctypes.c_int64) for field in ("next_task", "num_tasks", *integers)
    ]
    fields += [(field, ctypes.c_float) for field in floats]
    return type(name, (Arguments,), {"_fields_": fields})


def worker_signature(arguments: type[Arguments]) -> Any:
    """The Numba signature of a worker that is given a pointer to such a structure."""
    return types.void(types.CPointer(from_dtype(np.dtype(arguments))))


class Worker:
    """A compiled function, ready to run on one thread or on all of torch's."""

    def __init__(self, function: Any) -> None:
        self._function = function  # keeps the machine code alive
        self._address: int = function.address
        self._run_here = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function.address)

    def run(self, arguments: Arguments, *, parallel: bool) -> None:
        """Run once on the calling thread, or once on each thread of the team; the GIL is released."""
        pointer = ctypes.addressof(arguments)
        fork = _find_openmp() if parallel else None
        if fork is None:
            self._run_here(pointer)
        else:
            fork(self._address, pointer, torch.get_num_threads(), 0)


@cache
def _find_openmp() -> Callable[[int, int, int, int], None] | None:
    """`GOMP_parallel` of the OpenMP runtime that torch loaded; None where that has another interface."""
    try:
        function: Any = ctypes.CDLL(None).GOMP_parallel
    except AttributeError:
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    function.restype = None
    return function  # type: ignore[no-any-return]
