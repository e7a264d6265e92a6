"""Fixtures of the kernels' tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pageport.kernels import Kernels, make_kernels

# Test folders are not packages: what these tests share is imported as plain modules.
sys.path.insert(0, str(Path(__file__).parent))

from attention_cases import AttentionCase, build_case, check_close

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def case_of() -> Callable[..., AttentionCase]:
    return build_case


@pytest.fixture(scope="session")
def assert_agree() -> Callable[[torch.Tensor, torch.Tensor, str], None]:
    return check_close


@pytest.fixture(scope="session")
def cpu_kernels() -> Kernels:
    return make_kernels("cpu", CPU)


@pytest.fixture(scope="session")
def reference() -> Kernels:
    return make_kernels("reference", CPU)


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """`torch.empty` gives NaN: an element that a kernel forgets to write shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
