"""The api key, and what other origins may do."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_VARY = "origin, access-control-request-method, access-control-request-headers"
_METHODS = "GET,POST"
_HEADERS = "content-type"


class ApiKey:
    """`Authorization: Bearer <key>`; as in TGI, letters count the same in either case."""

    def __init__(self, key: str | None) -> None:
        self._expected = None if key is None else f"bearer {key}".encode().lower()

    def admits(self, scope: Scope) -> bool:
        if self._expected is None:
            return True
        given = Headers(scope=scope).get("authorization", "").encode("latin-1")
        return hmac.compare_digest(given.lower(), self._expected)


class Cors:
    """Adds the headers that browsers ask for to every response, and answers their preflight requests.

    No route has a method OPTIONS: the refusal that comes back names the methods there are, and becomes the answer.

    Args:
        origins: empty admits all.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        origin = Headers(scope=scope).get("origin", "")
        preflight = scope["method"] == "OPTIONS"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if preflight:
                    message["status"] = 200
                    headers["access-control-allow-methods"] = _METHODS
                    headers["access-control-allow-headers"] = _HEADERS
                headers["vary"] = _VARY
                if not self._origins:
                    headers["access-control-allow-origin"] = "*"
                elif origin in self._origins:
                    headers["access-control-allow-origin"] = origin
            await send(message)

        await self._app(scope, receive, send_with_headers)
