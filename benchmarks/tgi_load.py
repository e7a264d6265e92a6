"""Asks a TGI server, real or embedded, over its streaming route; one event a token."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import aiohttp

from pageport.migration.poc.load import Ask, Piece
from pageport.migration.poc.workload import LoadRequest

_EVENT = b"data:"


def ask_tgi(session: aiohttp.ClientSession, url: str) -> Ask:
    """Greedy `/generate_stream` requests.

    The prose of these prompts can end early, so token counts are exact only where the server never draws the end token;
    `run_load` counts such an answer as a failure.

    Args:
        url: the server's root, without a slash at the end.
    """

    async def ask(request: LoadRequest) -> AsyncIterator[Piece]:
        body = {
            "inputs": request.prompt,
            "parameters": {"max_new_tokens": request.output_tokens, "do_sample": False},
        }
        async with session.post(f"{url}/generate_stream", json=body) as response:
            response.raise_for_status()
            pending = b""
            async for chunk in response.content.iter_any():
                *events, pending = (pending + chunk).split(b"\n\n")
                for event in events:
                    if event.startswith(_EVENT):
                        yield _piece(event[len(_EVENT) :])

    return ask


def _piece(data: bytes) -> Piece:
    event = json.loads(data)
    if "error" in event:
        raise RuntimeError(event["error"])
    return Piece(event["token"]["text"], 1)
