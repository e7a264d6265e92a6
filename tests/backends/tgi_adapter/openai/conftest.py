"""Makes this folder's helpers importable, and gives a router with a client."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from router_harness import recorded_settings, running_router
from tokenizers import Tokenizer


def _register(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


_register("model_folders")
_register("openai_router")

from openai_router import Router  # noqa: E402  registered just now


@pytest.fixture
async def router(tokenizer: Tokenizer, demo_model: Path) -> AsyncIterator[Router]:
    async with running_router(recorded_settings(), tokenizer, demo_model) as (client, engine):
        yield Router(client, engine)


@pytest.fixture
async def strict_router(tokenizer: Tokenizer, demo_model: Path) -> AsyncIterator[Router]:
    async with running_router(recorded_settings(strict=True), tokenizer, demo_model) as (client, engine):
        yield Router(client, engine)
