"""Which implementation of the kernels runs."""

from __future__ import annotations

import logging

import torch

from pageport.kernels.interface import Kernels
from pageport.kernels.reference import ReferenceKernels

logger = logging.getLogger(__name__)


def make_kernels(name: str, device: torch.device) -> Kernels:
    """Build the kernels for a device.

    Args:
        name: "reference", "cpu", "gpu", or "auto": the fastest that works here, falling back with a log line.

    Raises:
        ImportError: "cpu" was asked for and numba cannot be imported, or "gpu" and triton.
        ValueError: unknown name, or kernels for another device.
    """
    if name == "reference":
        return ReferenceKernels()
    own = "cpu" if device.type == "cpu" else "gpu"
    if name not in ("auto", "cpu", "gpu"):
        raise ValueError(f"unknown kernels {name!r}: expected auto, reference, cpu or gpu")
    if name not in ("auto", own):
        raise ValueError(f"the {name} kernels cannot run on {device}")
    try:
        return _make_cpu_kernels() if own == "cpu" else _make_gpu_kernels()
    except ImportError as error:
        if name == own:
            raise
        logger.info("the %s kernels cannot be loaded (%s): using the reference kernels", own, error)
        return ReferenceKernels()


def _make_cpu_kernels() -> Kernels:
    from pageport.kernels.cpu.compile_cache import use_compile_cache
    from pageport.kernels.cpu.kernels import CpuKernels

    use_compile_cache()
    return CpuKernels()


def _make_gpu_kernels() -> Kernels:
    from pageport.kernels.gpu.kernels import GpuKernels

    return GpuKernels()
