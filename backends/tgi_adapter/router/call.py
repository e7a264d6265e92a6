"""One HTTP request, read and refused as TGI's framework does it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from pageport.backends.tgi_adapter.router.errors import BodyError, invalid
from pageport.core import ServiceClass

_MAX_DEPTH = 127

SERVICE_CLASS_HEADER = "x-pageport-service-class"

Model = TypeVar("Model", bound=BaseModel)


class ClientGoneError(Exception):
    """The client left before its request was whole."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request with its body.

    Attributes:
        start: `time.monotonic` of its arrival.
    """

    headers: Headers
    body: bytes
    start: float

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            BodyError: 400, it is not JSON, or nested more deeply than TGI's reader goes.
        """
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise BodyError(400, f"the body is not JSON: {error}") from None
        brackets = self.body.count(b"[") + self.body.count(b"{")
        if brackets > _MAX_DEPTH and (depth := _depth(value)) > _MAX_DEPTH:
            raise BodyError(400, f"the body: must be nested at most {_MAX_DEPTH} deep (given: {depth})")
        return value

    def parse(self, model: type[Model]) -> Model:
        """The body as this model.

        Raises:
            BodyError: as `json`; or the body is not of this shape (422).
        """
        return read_model(model, self.json())

    @property
    def service_class(self) -> ServiceClass:
        """From the client's header; realtime where there is none.

        Raises:
            RouterError: a class that does not exist.
        """
        given = self.headers.get(SERVICE_CLASS_HEADER, ServiceClass.REALTIME.value)
        try:
            return ServiceClass(given.strip().lower())
        except ValueError:
            known = " or ".join(ServiceClass)
            raise invalid(SERVICE_CLASS_HEADER, f"must be {known} (given: {given:.100})") from None

    @property
    def trace_context(self) -> dict[str, str]:
        """The W3C trace headers."""
        return {name: self.headers[name] for name in ("traceparent", "tracestate") if name in self.headers}


def _depth(value: Any) -> int:
    """Of objects and lists in each other."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


def read_model(model: type[Model], value: Any) -> Model:
    """A decoded body as this model.

    Raises:
        BodyError: 422, naming the first field that is wrong, why, and the value given.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the body"
        given = "" if first["type"] == "missing" else f" (given: {first['input']!r:.100})"
        raise BodyError(422, f"{field}: {_problem(first)}{given}") from None


def _problem(error: ErrorDetails) -> str:
    if error["type"] == "model_type":
        return "must be a JSON object"
    return str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]


def require_json(headers: Headers) -> None:
    """Raises BodyError (415): the body is not declared as JSON."""
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not (
        content_type.startswith("application/") and content_type.endswith("+json")
    ):
        raise BodyError(
            415, f"content-type: must be application/json (given: {content_type or 'none'!s:.100})"
        )


async def read_call(scope: Scope, receive: Receive, payload_limit: int) -> Call:
    """Wait for the whole request.

    Raises:
        BodyError: 413, the body is longer than the limit.
        ClientGoneError: it never became whole.
    """
    start = time.monotonic()
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > payload_limit:
            raise BodyError(
                413, f"the body: must be at most {payload_limit} bytes long (given: more than {size - 1})"
            )
        more = message.get("more_body", False)
    return Call(Headers(scope=scope), b"".join(chunks), start)
