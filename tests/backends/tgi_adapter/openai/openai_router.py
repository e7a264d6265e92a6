"""A router over a scripted engine, spoken to as OpenAI's clients do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
from scripted_engine import ScriptedEngine
from transcript import read_events

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
