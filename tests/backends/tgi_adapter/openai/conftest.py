"""Makes this folder's helpers importable, and gives a router with a client."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_harness import recorded_settings, running_router
from scripted_engine import ScriptedEngine
from tokenizers import Tokenizer
from transcript import read_events

_SPEC = importlib.util.spec_from_file_location("model_folders", Path(__file__).with_name("model_folders.py"))
assert _SPEC is not None and _SPEC.loader is not None
sys.modules["model_folders"] = _MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)

MESSAGES = [{"role": "user", "content": "Hi"}]


@dataclass(frozen=True)
class Router:
    """A running router, and the engine behind it."""

    client: httpx.AsyncClient
    engine: ScriptedEngine

    async def chat(self, **fields: Any) -> httpx.Response:
        """A chat request of one message, but for the fields given."""
        return await self.client.post("/v1/chat/completions", json={"messages": MESSAGES, **fields})

    async def chat_events(self, **fields: Any) -> list[Any]:
        return read_events((await self.chat(stream=True, **fields)).content)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/completions", json=fields)


@pytest.fixture
async def router(tokenizer: Tokenizer, demo_model: Path) -> AsyncIterator[Router]:
    async with running_router(recorded_settings(), tokenizer, demo_model) as (client, engine):
        yield Router(client, engine)


@pytest.fixture
async def strict_router(tokenizer: Tokenizer, demo_model: Path) -> AsyncIterator[Router]:
    async with running_router(recorded_settings(strict=True), tokenizer, demo_model) as (client, engine):
        yield Router(client, engine)
