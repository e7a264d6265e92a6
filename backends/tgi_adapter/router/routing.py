"""From a path and a method to a handler, with the api key, the body's limits and the errors in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pageport.backends.tgi_adapter.router.call import (
    Call,
    ClientGoneError,
    read_call,
    require_json,
)
from pageport.backends.tgi_adapter.router.connection import Connection
from pageport.backends.tgi_adapter.router.errors import BodyError, RouterError
from pageport.backends.tgi_adapter.router.security import ApiKey
from pageport.backends.tgi_adapter.router.sse import encode

# Answers a call with a response: Starlette's own, or an `EventStream`. May raise RouterError and BodyError.
Handler = Callable[[Call], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """One method of one path.

    Attributes:
        protected: needs the api key, where one is set.
    """

    method: str
    path: str
    handler: Handler
    protected: bool = True


class JsonResponse(Response):
    """An answer in JSON, printed as TGI prints it."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return encode(content)


class TextResponse(Response):
    """A refusal by the framework."""

    media_type = "text/plain"


def error_response(error: RouterError) -> Response:
    """The answer to a request that failed before its stream, if any, had begun."""
    return JsonResponse(error.body, error.kind.status)


def make_routes(specs: Iterable[RouteSpec], api_key: ApiKey, payload_limit: int) -> list[Route]:
    """One route a path."""
    tables: dict[str, dict[str, ASGIApp]] = {}
    for spec in specs:
        endpoint = _Endpoint(spec, api_key, payload_limit)
        tables.setdefault(spec.path, {})[spec.method] = endpoint
    return [Route(path, _MethodTable(table)) for path, table in tables.items()]


class _MethodTable:
    """The methods of one path. HEAD is a GET without its body."""

    def __init__(self, endpoints: dict[str, ASGIApp]) -> None:
        self._endpoints = endpoints
        if "GET" in endpoints:
            self._endpoints = {**endpoints, "HEAD": endpoints["GET"]}
        self._allow = ",".join(sorted(self._endpoints))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            endpoint = Response(status_code=405, headers={"allow": self._allow})
        await endpoint(scope, receive, send)


class _Endpoint:
    """One handler as an ASGI application."""

    def __init__(self, spec: RouteSpec, api_key: ApiKey, payload_limit: int) -> None:
        self._spec = spec
        self._api_key = api_key
        self._payload_limit = payload_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._spec.protected and not self._api_key.admits(scope):
            await Response(status_code=401)(scope, receive, send)
            return
        try:
            if self._spec.method == "POST":
                require_json(Headers(scope=scope))
            call = await read_call(scope, receive, self._payload_limit)
        except BodyError as error:
            await TextResponse(error.message, error.status)(scope, receive, send)
            return
        except ClientGoneError:
            return
        async with Connection(receive):
            response = await self._answer(call)
            await response(scope, receive, send)

    async def _answer(self, call: Call) -> ASGIApp:
        try:
            return await self._spec.handler(call)
        except RouterError as error:
            return error_response(error)
        except BodyError as error:
            return TextResponse(error.message, error.status)
