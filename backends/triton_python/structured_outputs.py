"""vLLM's way to say what an answer must look like: `structured_outputs`, before that `guided_decoding`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pageport.backends.triton_python.contract import UnsupportedRequestError
from pageport.core import Grammar, GrammarKind, InvalidRequestError

_KINDS = ("json", "regex", "choice", "json_object")


def read_structured_outputs(field: str, value: Any) -> Grammar:
    """One of `json` (a schema or its text), `regex`, `choice` (a list of texts) and `json_object` (true).

    Args:
        field: the parameter's name, for errors.
        value: an object, or its JSON text.

    Raises:
        UnsupportedRequestError: another kind, or an option that changes something.
        InvalidRequestError: not exactly one kind, or one that is not written as it must be.
    """
    asked = {name: item for name, item in _as_object(field, value).items() if item not in (None, False)}
    for name in asked:
        if name not in _KINDS:
            raise UnsupportedRequestError(f"{field}.{name}", "is not supported by this server")
    if len(asked) != 1:
        given = ", ".join(asked) or "none"
        raise InvalidRequestError(field, f"must have one of {', '.join(_KINDS)} (given: {given})")
    ((kind, item),) = asked.items()
    match kind, item:
        case "json", str():
            return Grammar(GrammarKind.JSON_SCHEMA, item)
        case "json", dict():
            return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(item))
        case "json_object", True:
            return Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
        case "regex", str():
            return Grammar(GrammarKind.REGEX, item)
        case "choice", [*texts] if texts and all(isinstance(text, str) for text in texts):
            return Grammar(GrammarKind.REGEX, "|".join(map(re.escape, texts)))
    raise InvalidRequestError(f"{field}.{kind}", f"is not of the right type (given: {item!r:.100})")


def _as_object(field: str, value: Any) -> Mapping[str, Any]:
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(field, f"is not valid JSON: {error}") from None
    if not isinstance(given, Mapping):
        raise InvalidRequestError(field, f"must be a JSON object (given: {value!r:.100})")
    return given
