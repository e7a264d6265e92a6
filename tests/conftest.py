"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch loads: idle threads sleep, as in the product. Spinning ones would slow every other process.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

# Before anything loads triton: on import its own functions are made for the interpreter or for the compiler.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for the demo model is a test with a real model."""
    for item in items:
        if isinstance(item, pytest.Function) and "demo_model" in item.fixturenames:
            item.add_marker(pytest.mark.real_model)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The folder of SmolLM2-135M-Instruct; fetched and converted the first time."""
    from pageport.core import demo_model_path

    return demo_model_path()
