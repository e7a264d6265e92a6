"""The messages of a conversation: what clients may send, and what templates get to see of it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from pageport.backends.tgi_adapter.router.openai.kinds import json_kind, one_of
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


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]
Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Part], Tag("list")],
    one_of(json_kind, "a text or a list of parts"),
]


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


class Message(Body):
    """One message: content, or else tool calls. Any role is taken.

    Attributes:
        tool_calls: of a message without content.
        given_calls, tool_call_id: as they came; TGI does not look at them.
    """

    role: str
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    given_calls: Any = None
    tool_call_id: Any = None

    @model_validator(mode="before")
    @classmethod
    def _content_or_calls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        given = value.get("tool_calls")
        if value.get("content") is None and given is None:
            raise ValueError("`content` must be a text or a list of parts, or `tool_calls` must be given")
        value = {**value, "given_calls": given}
        if value.get("content") is not None:
            value.pop("tool_calls", None)
        return value

    @property
    def text(self) -> str:
        """All that is said in it; of tool calls, their JSON."""
        if self.content is None:
            return compact_json([call.dump() for call in self.tool_calls])
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
        if isinstance(self.given_calls, list) and self.given_calls:
            shown["tool_calls"] = [_decoded_call(call) for call in self.given_calls]
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
