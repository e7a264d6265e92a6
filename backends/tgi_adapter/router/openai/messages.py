"""The messages of a conversation: what clients may send, and what templates get to see of it."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from pageport.backends.tgi_adapter.router.schemas import Body


class TextPart(Body):
    """A piece of text."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """Where an image is, or the image itself as a `data:` address."""

    url: str


class ImagePart(Body):
    """An image. To a model of text it is its address, in Markdown's notation, as in TGI."""

    type: Literal["image_url"]
    image_url: ImageUrl


class FunctionDefinition(Body):
    """A function: one that may be called, or (`arguments`) a call of it."""

    description: str | None = None
    name: str
    arguments: Any = Field(alias="parameters")

    @model_validator(mode="before")
    @classmethod
    def _either_name(cls, value: Any) -> Any:
        """`arguments` is another name for `parameters`."""
        if isinstance(value, dict) and "arguments" in value:
            if "parameters" in value:
                raise ValueError("`arguments` and `parameters` are the same and must not both be given")
            return {**value, "parameters": value["arguments"]}
        return value

    def dump(self) -> dict[str, Any]:
        """As TGI shows it: what it takes is JSON text."""
        text = compact_json(self.arguments)
        return {"description": self.description, "name": self.name, "arguments": text}


class ToolCall(Body):
    """A call that the assistant made earlier."""

    id: str
    type: str
    function: FunctionDefinition

    def dump(self) -> dict[str, Any]:
        return {"id": self.id, "type": self.type, "function": self.function.dump()}


# All of 64 bits and more; beyond some thousands Python refuses.
_MOST_DIGITS = 20

_TOOL_CALLS = TypeAdapter(list[ToolCall])


class Message(Body):
    """One message: content, or else tool calls. Any role is taken.

    Attributes:
        tool_calls, tool_call_id: as they came; `calls` are the calls of a message without content.
    """

    role: str
    content: str | list[TextPart | ImagePart] | None = None
    name: str | None = None
    tool_calls: Any = None
    tool_call_id: Any = None
    calls: list[ToolCall] = Field(default_factory=list, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _content_or_calls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = {key: item for key, item in value.items() if key != "calls"}
        if value.get("content") is None:
            if value.get("tool_calls") is None:
                raise ValueError(
                    "`content` must be a string or a list of parts, or `tool_calls` must be given"
                )
            value["calls"] = _TOOL_CALLS.validate_python(value["tool_calls"])
        return value

    @property
    def text(self) -> str:
        """All that is said in it; of tool calls, their JSON."""
        if self.content is None:
            return compact_json([call.dump() for call in self.calls])
        if isinstance(self.content, str):
            return self.content
        return "".join(
            part.text if isinstance(part, TextPart) else f"![]({part.image_url.url})" for part in self.content
        )

    def for_tgi(self, appended: str = "") -> dict[str, Any]:
        """All that TGI shows of a message to a template."""
        return {"role": self.role, "content": self.text + (appended if self.content is not None else "")}

    def for_transformers(self, appended: str = "") -> dict[str, Any]:
        """What templates that were written for transformers expect; calls with their arguments as objects."""
        shown: dict[str, Any] = {"role": self.role}
        shown["content"] = None if self.content is None else self.text + appended
        for name in ("name", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                shown[name] = value
        if isinstance(self.tool_calls, list) and self.tool_calls:
            shown["tool_calls"] = [_decoded_call(call) for call in self.tool_calls]
        return shown


def is_number(text: str) -> bool:
    """Whether it is a whole number of ordinary size."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _decoded_call(call: Any) -> Any:
    """Clients send the arguments as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
