"""The GPU benchmark's share of busy time, which no machine without a GPU can measure."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture
def covered_share(monkeypatch):
    """From `benchmarks/gpu_busy.py`, which belongs to no package."""
    path = Path(__file__).parents[2] / "benchmarks" / "gpu_busy.py"
    spec = importlib.util.spec_from_file_location("gpu_busy", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module.covered_share


@pytest.mark.parametrize(
    ("intervals", "share"),
    [
        ([(10, 20)], 1.0),
        ([(10, 20), (20, 30)], 1.0),
        ([(30, 40), (10, 20)], 2 / 3),
        ([(0, 10), (5, 12), (2, 3), (16, 20)], 16 / 20),  # two streams at once count once
        ([], 0.0),
    ],
)
def test_overlaps_count_once_and_gaps_not_at_all(covered_share, intervals, share):
    assert covered_share(intervals) == pytest.approx(share)
