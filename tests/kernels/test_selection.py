from __future__ import annotations

import logging
import sys

import pytest
import torch

from pageport.kernels import make_kernels

CPU = torch.device("cpu")


@pytest.fixture
def without_numba(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("pageport.kernels.cpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)


@pytest.mark.parametrize(("name", "expected"), [("auto", "cpu"), ("cpu", "cpu"), ("reference", "reference")])
def test_a_name_chooses(name, expected):
    assert make_kernels(name, CPU).name == expected


def test_auto_falls_back_without_numba_and_says_so_once(without_numba, caplog):
    with caplog.at_level(logging.INFO, logger="pageport"):
        assert make_kernels("auto", CPU).name == "reference"
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert "numba" in record.getMessage()


def test_an_explicit_choice_fails_loudly(without_numba):
    with pytest.raises(ImportError, match="numba"):
        make_kernels("cpu", CPU)


def test_cpu_kernels_refuse_another_device():
    with pytest.raises(ValueError, match="cuda"):
        make_kernels("cpu", torch.device("cuda"))


def test_a_gpu_gets_its_own_kernels():
    assert make_kernels("auto", torch.device("cuda")).name == "gpu"


def test_gpu_kernels_refuse_the_cpu():
    with pytest.raises(ValueError, match="cpu"):
        make_kernels("gpu", CPU)


def test_a_gpu_without_triton_falls_back_to_the_reference(monkeypatch):
    monkeypatch.setitem(sys.modules, "pageport.kernels.gpu.kernels", None)
    assert make_kernels("auto", torch.device("cuda")).name == "reference"


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="'fast'"):
        make_kernels("fast", CPU)
