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
        name: "reference", "cpu", or "auto": the fastest that works here, falling back with a log line.

    Raises:
        ImportError: "cpu" was asked for and numba cannot be imported.
        ValueError: unknown name, or "cpu" on another device.
    """
    if name == "reference":
        return ReferenceKernels()
    if name not in ("auto", "cpu"):
        raise ValueError(f"unknown kernels {name!r}: expected auto, reference or cpu")
    if device.type != "cpu":
        if name == "cpu":
            raise ValueError(f"the cpu kernels cannot run on {device}")
        logger.info("no fast kernels for device %s: using the reference kernels", device)
        return ReferenceKernels()
    try:
        return _make_cpu_kernels()
    except ImportError as error:
        if name == "cpu":
            raise
        logger.info("the cpu kernels cannot be loaded (%s): using the reference kernels", error)
        return ReferenceKernels()


def _make_cpu_kernels() -> Kernels:
    from pageport.kernels.cpu.compile_cache import use_compile_cache
    from pageport.kernels.cpu.kernels import CpuKernels

    use_compile_cache()
    return CpuKernels()
