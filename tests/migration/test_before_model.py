"""The tutorial model's cache accounting, without a Triton server."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pageport.migration.poc import repository


@pytest.fixture
def model_file(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`before_model.py`, imported as the server does it: by its path."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    path = Path(repository.__file__).with_name("before_model.py")
    spec = importlib.util.spec_from_file_location("before_model_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Gauges:
    def __init__(self) -> None:
        self.calls: list[tuple[float, float, int]] = []

    def set(self, reserved: float, used: float, running: int) -> None:
        self.calls.append((reserved, used, running))


def _cache(batch: int, slots: int) -> Any:
    """Two layers of `batch` x 3 heads x `slots` x 4, float32: 2 * 2 * 3 * 4 * 4 bytes a slot."""
    tensor = torch.zeros(batch, 3, slots, 4)
    return SimpleNamespace(layers=[SimpleNamespace(keys=tensor, values=tensor)] * 2)


SLOT = 2 * 2 * 3 * 4 * 4


def test_one_request_wastes_nothing(model_file: ModuleType) -> None:
    gauges = _Gauges()
    probe = model_file.CacheProbe(_cache(1, 10), [10], [5], gauges)
    stop = probe(torch.zeros(1, 11), None)
    assert gauges.calls == [(10 * SLOT, 10 * SLOT, 1)]
    assert stop.tolist() == [False]
    assert stop.dtype == torch.bool


def test_padding_and_finished_rows_are_waste(model_file: ModuleType) -> None:
    gauges = _Gauges()
    cache = _cache(2, 10)
    probe = model_file.CacheProbe(cache, [10, 4], [3, 1], gauges)
    probe(torch.zeros(2, 11), None)
    cache.layers = _cache(2, 11).layers
    probe(torch.zeros(2, 12), None)
    # First both rows count, 10 + 4 slots of 20; then the second has its one token and only the first counts.
    assert gauges.calls == [(20 * SLOT, 14 * SLOT, 2), (22 * SLOT, 11 * SLOT, 2)]


def test_answers_are_cut_to_their_length(model_file: ModuleType) -> None:
    class Tokenizer:
        def __call__(self, texts: list[str], **_: Any) -> dict[str, torch.Tensor]:
            return {
                "input_ids": torch.tensor([[0, 1], [2, 3]]),
                "attention_mask": torch.tensor([[0, 1], [1, 1]]),
            }

    def generate(**arguments: Any) -> torch.Tensor:
        assert arguments["max_new_tokens"] == 3
        return torch.tensor([[0, 1, 10, 11, 12], [2, 3, 20, 21, 22]])

    model = model_file.TritonPythonModel()
    model._tokenizer = Tokenizer()
    model._model = SimpleNamespace(generate=generate)
    model._new_cache = lambda: _cache(2, 2)
    model._gauges = _Gauges()
    questions = [model_file.Question("a", 1), model_file.Question("b", 3)]
    assert model._generate(questions) == [[10], [20, 21, 22]]
    assert model._gauges.calls[-1] == (0.0, 0.0, 0)
