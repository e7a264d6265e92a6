"""Tests on a GPU: `python -m pytest tests/gpu`. `--device=interpreter`: the same, small, in Triton's interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Test folders are not packages: what tests and benchmarks share is imported as plain modules.
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

import checkout  # noqa: F401


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cuda", "interpreter"),
        default="cuda",
        help="where the GPU's kernels run; the interpreter needs no GPU",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before anything loads triton: on import its functions are made for the interpreter or for the compiler."""
    if _is_interpreted(config):
        os.environ["TRITON_INTERPRET"] = "1"


def _is_interpreted(config: pytest.Config) -> bool:
    # In a run of all tests this file is loaded too late for its option to exist.
    return bool(config.getoption("device", "cuda") == "interpreter")


@pytest.fixture(scope="session")
def interpreted(pytestconfig: pytest.Config) -> bool:
    """Whether shapes should be small."""
    return _is_interpreted(pytestconfig)


@pytest.fixture(scope="session")
def device(interpreted: bool) -> torch.device:
    if interpreted:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU; --device=interpreter runs these tests without one")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def gpu_kernels(device):
    from pageport.kernels.gpu.kernels import GpuKernels

    return GpuKernels()


@pytest.fixture(scope="session")
def reference():
    from pageport.kernels.reference import ReferenceKernels

    return ReferenceKernels()


@pytest.fixture
def poisoned_outputs() -> Iterator[None]:
    """`torch.empty` gives NaN: an element that a kernel forgets to write shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
