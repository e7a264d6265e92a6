"""The body of a chat request, as TGI takes it. What OpenAI's clients may say beyond that: see `supersets`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag, model_validator

from pageport.backends.tgi_adapter.router.openai.kinds import json_kind, one_of
from pageport.backends.tgi_adapter.router.openai.messages import (
    FunctionDefinition,
    Message,
    compact_json,
    is_number,
)
from pageport.backends.tgi_adapter.router.schemas import Body, GrammarBody, UInt32, UInt64


class Tool(Body):
    """A function that the model may call."""

    type: str
    function: FunctionDefinition

    def dump(self) -> dict[str, Any]:
        """As TGI shows it to templates."""
        return {"type": self.type, "function": self.function.dump()}

    def for_transformers(self) -> dict[str, Any]:
        """As templates that were written for transformers expect it."""
        function = self.function
        shown = {"name": function.name, "description": function.description, "parameters": function.arguments}
        return {"type": self.type, "function": shown}


class FunctionName(Body):
    """A function by its name."""

    name: str


class NamedChoice(Body):
    """Exactly this function shall be called."""

    type: Literal["function"]
    function: FunctionName


class StreamOptions(Body):
    """Options of a stream."""

    include_usage: bool = False


def _token_id(text: str) -> str:
    if not is_number(text):
        raise ValueError("must be the number of a token")
    return text


TokenId = Annotated[str, AfterValidator(_token_id)]
LogitBias = Annotated[
    Annotated[list[float], Tag("list")] | Annotated[dict[TokenId, float], Tag("object")],
    one_of(json_kind, "an object of token ids and numbers"),
]
ToolChoice = Annotated[
    Annotated[str, Tag("text")] | Annotated[NamedChoice, Tag("object")],
    one_of(json_kind, "auto, none, required, or a function"),
]


class ChatRequest(Body):
    """The body of `/v1/chat/completions`, `/chat_tokenize` and, among others, `/invocations` and `/vertex`.

    Attributes:
        logit_bias: a list is taken and means nothing, as in TGI; an object (OpenAI's form): token id to addition.
        tool_choice: `auto` (also None), `none`, `required`, or the name of a function, bare or wrapped.
    """

    model: str | None = None
    messages: list[Message]
    frequency_penalty: float | None = None
    logit_bias: LogitBias | None = None
    logprobs: bool | None = None
    top_logprobs: UInt32 | None = None
    max_tokens: UInt32 | None = None
    n: UInt32 | None = None
    presence_penalty: float | None = None
    stop: list[str] | None = None
    stream: bool = False
    seed: UInt64 | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[Tool] | None = None
    tool_prompt: str | None = None
    tool_choice: ToolChoice | None = None
    response_format: GrammarBody | None = None
    stream_options: StreamOptions = Field(default_factory=StreamOptions)

    @model_validator(mode="before")
    @classmethod
    def _one_limit(cls, value: Any) -> Any:
        """`max_completion_tokens` is another name for `max_tokens`."""
        if isinstance(value, dict) and "max_completion_tokens" in value:
            if "max_tokens" in value:
                shown = compact_json([value["max_tokens"], value["max_completion_tokens"]])
                raise ValueError(
                    f"`max_tokens` and `max_completion_tokens` must not both be given: {shown:.60}"
                )
            return {**value, "max_tokens": value["max_completion_tokens"]}
        return value
