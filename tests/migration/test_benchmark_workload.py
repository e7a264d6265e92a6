"""The benchmarks' workload has the totals that its results are quoted with."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pageport.migration.poc.workload import draw_lengths


@pytest.fixture
def workload(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/workload.py`, which belongs to no package."""
    path = Path(__file__).parents[2] / "benchmarks" / "workload.py"
    spec = importlib.util.spec_from_file_location("benchmark_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_the_totals_of_the_full_workload(workload: ModuleType) -> None:
    rng = random.Random(1234)
    prompts = draw_lengths(64, workload.PROMPTS, rng)
    outputs = draw_lengths(64, workload.OUTPUTS, rng)
    assert (sum(prompts), sum(outputs)) == (10_919, 9_548)
    assert 16 <= min(prompts) < max(prompts) <= 1024
    assert 20 <= min(outputs) < max(outputs) <= 512
