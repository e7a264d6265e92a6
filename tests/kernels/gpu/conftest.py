"""The GPU's kernels run on a GPU where there is one, and in Triton's interpreter on the CPU otherwise."""

from __future__ import annotations

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def device():
    return DEVICE


@pytest.fixture(scope="session")
def gpu_kernels():
    from pageport.kernels.gpu.kernels import GpuKernels

    return GpuKernels()
