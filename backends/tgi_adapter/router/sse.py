"""Server-sent events: framing, and a response that costs little for each event."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

KEEP_ALIVE_S = 15.0
DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b":\n\n"


def encode(value: Any) -> bytes:
    """JSON as TGI prints it: `numpy.float32` with the fewest digits that tell it apart, NaN as null."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def frame(value: Any) -> bytes:
    """One event."""
    return b"data: " + encode(value) + b"\n\n"


class EventStream:
    """An ASGI response. Each chunk (one framed event, or several that came together) leaves with one write.

    Args:
        chunks: closed when the stream ends, for whatever reason.
        headers: beside those that every stream has.
    """

    def __init__(self, chunks: AsyncGenerator[bytes], headers: Mapping[str, str]) -> None:
        self._chunks = chunks
        fixed = {"content-type": "text/event-stream", "cache-control": "no-cache"}
        self._headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in {**fixed, **headers}.items()
        ]
        self._last_write = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            self._last_write = time.monotonic()
            keep_alive = asyncio.create_task(self._keep_alive(send))
            try:
                async for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    self._last_write = time.monotonic()
            finally:
                keep_alive.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        """A comment whenever the stream has been quiet for long enough."""
        while True:
            await asyncio.sleep(self._last_write + KEEP_ALIVE_S - time.monotonic())
            if time.monotonic() >= self._last_write + KEEP_ALIVE_S:
                await send({"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True})
                self._last_write = time.monotonic()
