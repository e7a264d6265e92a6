"""Calling functions: the grammar that makes a model call one, and reading what it wrote.

The model writes `{"function": {"_name": name, …arguments}}`. Where it may also not call any, it says so with a function
of its own, and is asked again without functions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pageport.backends.tgi_adapter.router.errors import ErrorKind, RouterError
from pageport.backends.tgi_adapter.router.openai.chat_schemas import NamedChoice, Tool
from pageport.backends.tgi_adapter.router.openai.messages import compact_json
from pageport.backends.tgi_adapter.router.schemas import JsonGrammar

_NO_TOOL = "no_tool"
_NO_TOOL_DEFINITION = Tool.model_validate(
    {
        "type": "function",
        "function": {
            "name": _NO_TOOL,
            "description": "Open ended response with no specific tool selected",
            "parameters": {"type": "object"},
        },
    }
)
_NAME = "_name"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that a model wrote.

    Attributes:
        arguments: JSON text.
    """

    name: str
    arguments: str

    @property
    def is_none(self) -> bool:
        """The model chose to call nothing."""
        return self.name == _NO_TOOL


def tools_to_offer(tools: Sequence[Tool], choice: str | NamedChoice | None) -> list[Tool]:
    """Those of the client's tools that the model may call now; none: it shall answer in words.

    Raises:
        RouterError: the tool that the client chose is not one of them.
    """
    if choice is None or choice == "auto":
        return [*tools, _NO_TOOL_DEFINITION]
    if choice == "none":
        return []
    if choice == "required":
        return list(tools)
    name = choice.function.name if isinstance(choice, NamedChoice) else choice
    for tool in tools:
        if tool.function.name == name:
            return [tool]
    known = ", ".join(tool.function.name for tool in tools) or "none"
    raise RouterError(
        ErrorKind.TOOL,
        f"tool_choice: must be auto, none, required or one of the tools: {known} (given: {name:.100})",
    )


def tool_grammar(tools: Sequence[Tool]) -> JsonGrammar:
    """What a model may write to call one of these tools."""
    documents: dict[str, Any] = {}
    calls = [_call_schema(tool, f"tool_{number}", documents) for number, tool in enumerate(tools)]
    schema = _object({"function": {"anyOf": calls}}, ["function"])
    if documents:
        schema["$defs"] = documents
    return JsonGrammar(type="json", value=schema)


def parse_call(text: str) -> FunctionCall:
    """What a model wrote.

    Raises:
        RouterError: it is not a call; its answer may have been cut off.
    """
    call = try_parse_call(text)
    if call is None:
        raise RouterError(
            ErrorKind.TOOL, f"tools: the model's answer is not a function call (it is: {text!r:.200})"
        )
    return call


def try_parse_call(text: str) -> FunctionCall | None:
    """None: it is not a call."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get(_NAME), str):
        return None
    name = function.pop(_NAME)
    return FunctionCall(name, compact_json(function))


def _call_schema(tool: Tool, key: str, documents: dict[str, Any]) -> dict[str, Any]:
    """One tool's call. Where its schema refers to parts of itself, all of it goes to `documents` under the key."""
    parameters = tool.function.arguments
    if not isinstance(parameters, dict):
        parameters = {}
    elif _refers(parameters):
        parameters = documents[key] = _relocated(parameters, f"#/$defs/{key}")
    given, required = parameters.get("properties"), parameters.get("required")
    properties = {_NAME: {"const": tool.function.name}}
    if isinstance(given, dict):
        properties |= {name: schema for name, schema in given.items() if name != _NAME}
    return _object(properties, [_NAME, *(required if isinstance(required, list) else [])])


def _object(properties: dict[str, Any], required: list[Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _refers(schema: Any) -> bool:
    if isinstance(schema, dict):
        return "$ref" in schema or any(map(_refers, schema.values()))
    return isinstance(schema, list) and any(map(_refers, schema))


def _relocated(schema: Any, root: str) -> Any:
    """The schema with its references to itself as they must be where it now is."""
    if isinstance(schema, list):
        return [_relocated(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _relocated(item, root) for key, item in schema.items()}
    if isinstance(target := moved.get("$ref"), str) and target.startswith("#"):
        moved["$ref"] = root + target.removeprefix("#")
    return moved
