"""JSON schemas whose objects hold the properties that they name, and no others.

By the standard an object may hold anything beside what its schema names. A small model that may add what it likes
does not come to an end, so what a schema leaves open is closed, as TGI and vLLM do; `additionalProperties` in the
schema opens an object. What such a grammar lets through always fits the schema as it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_HOLD_ONE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_HOLD_MANY = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_HOLD_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")

# Keywords that ask an object to fit two schemas at once: if one were closed, it would forbid what the other names.
_COMBINING = ("$ref", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then")
_OPENING = ("additionalProperties", "patternProperties", "unevaluatedProperties")


def close_objects(schema: dict[str, Any]) -> None:
    """Close the schema's objects, in place; none of them where some object has to fit several schemas at once."""
    parts = list(_parts(schema))
    if any(_combines(part) for part in parts):
        return
    for part in parts:
        if "properties" in part and not any(key in part for key in _OPENING):
            part["additionalProperties"] = False


def _combines(schema: dict[str, Any]) -> bool:
    return "allOf" in schema or ("properties" in schema and any(key in schema for key in _COMBINING))


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas inside it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        if key in _HOLD_NAMED and isinstance(value, dict):
            inner = list(value.values())
        elif key in _HOLD_MANY and isinstance(value, list):
            inner = value
        else:
            inner = [value] if key in _HOLD_ONE else []
        for part in inner:
            yield from _parts(part)
