"""What the router answers when it cannot answer: TGI's status codes and error types, in our own words."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Kind:
    status: int
    error_type: str
    failure: str | None


class ErrorKind(enum.Enum):
    """The HTTP status of an error, its `error_type`, and its label in `tgi_request_failure` (None: not counted)."""

    OVERLOADED = _Kind(429, "overloaded", "overloaded")
    VALIDATION = _Kind(422, "validation", "validation")
    GENERATION = _Kind(424, "generation", "generation")
    INCOMPLETE = _Kind(500, "incomplete_generation", "incomplete")
    INCOMPLETE_STREAM = _Kind(500, "incomplete_generation_stream", "incomplete")
    TEMPLATE = _Kind(422, "template_error", "template")
    TOOL = _Kind(422, "tool_error", None)
    SUFFIX = _Kind(422, "suffix not supported", "validation")
    BATCH_SIZE = _Kind(422, "batch size exceeded", "validation")
    VERTEX_INPUT = _Kind(422, "Input validation error", None)
    VERTEX_GENERATION = _Kind(500, "Incomplete generation", None)
    UNHEALTHY = _Kind(503, "healthcheck", None)
    NOT_FOUND = _Kind(404, "not_found", None)

    @property
    def status(self) -> int:
        return self.value.status

    @property
    def error_type(self) -> str:
        return self.value.error_type

    @property
    def failure(self) -> str | None:
        return self.value.failure


class RouterError(Exception):
    """An answer of the form `{"error": message, "error_type": kind}`.

    Args:
        field: what of the request is wrong, where it is one thing; the message begins with it.
    """

    def __init__(self, kind: ErrorKind, problem: str, field: str | None = None) -> None:
        super().__init__(kind, problem, field)
        self.kind = kind
        self._problem = problem
        self._field = field

    def __str__(self) -> str:
        return self.message

    @property
    def message(self) -> str:
        return self._problem if self._field is None else f"{self._field}: {self._problem}"

    def name_as(self, names: Mapping[str, str]) -> None:
        """Where the client called the field something else."""
        if self._field is not None:
            self._field = names.get(self._field, self._field)

    @property
    def body(self) -> dict[str, str]:
        return {"error": self.message, "error_type": self.kind.error_type}


def invalid(field: str, problem: str) -> RouterError:
    """A request that was understood and cannot be served: which field, and what is wrong with it."""
    return RouterError(ErrorKind.VALIDATION, problem, field)


class BodyError(Exception):
    """A request that could not even be read; answered in plain text, as TGI's HTTP framework does.

    Attributes:
        status: 400 not JSON, 413 too long, 415 not declared as JSON, 422 not of the wanted shape.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
