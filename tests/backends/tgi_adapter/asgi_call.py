"""A client of an ASGI application that sees an answer as it comes, and can leave in the middle of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import ASGIApp, Message
from transcript import read_events


class AsgiCall:
    """One request. It begins with the object; `wait` for its end, or `leave`."""

    def __init__(self, app: ASGIApp, method: str, path: str, body: Any = None, **headers: str) -> None:
        self.path = path
        self.status = 0
        self.chunks: list[bytes] = []
        self._left = asyncio.Event()
        self._request: Message | None = {
            "type": "http.request",
            "body": b"" if body is None else json.dumps(body).encode(),
        }
        self._progress = asyncio.Condition()
        all_headers = {"content-type": "application/json", **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in all_headers.items()],
        }
        self.task = asyncio.create_task(self._run(app, scope))

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def events(self) -> list[Any]:
        return read_events(self.body)

    async def wait(self) -> None:
        await asyncio.wait_for(self.task, 30)

    async def wait_events(self, count: int) -> None:
        """Until so many events have come, or the answer has ended."""

        def enough() -> bool:
            return self.body.count(b"data: ") >= count or self.task.done()

        async with asyncio.timeout(30), self._progress:
            await self._progress.wait_for(enough)

    async def leave(self) -> None:
        """Close the connection, and wait until the application is done with the request."""
        self._left.set()
        await self.wait()

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            async with self._progress:
                self._progress.notify_all()

    async def _receive(self) -> Message:
        if self._request is not None:
            request, self._request = self._request, None
            return request
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._left.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message.get("body"):
            self.chunks.append(message["body"])
        async with self._progress:
            self._progress.notify_all()
