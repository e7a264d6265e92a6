"""Makes this folder's helpers importable."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from pageport.core import load_tokenizer


def _register(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


_register("scripted_engine")
_register("transcript")
_register("router_harness")
_register("asgi_call")


@pytest.fixture(scope="session")
def tokenizer(demo_model: Path) -> Tokenizer:
    """The demo model's."""
    return load_tokenizer(demo_model)
