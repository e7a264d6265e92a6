"""A chat's answer, token by token."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from pageport.backends.tgi_adapter.generation import TokenEvent
from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.errors import RouterError
from pageport.backends.tgi_adapter.router.inference import GenerateInput, Inference
from pageport.backends.tgi_adapter.router.openai.answers import (
    Identity,
    Usage,
    error_event,
    finish_reason,
    logprobs,
    text_message,
)
from pageport.backends.tgi_adapter.router.openai.chat_input import ChatInput, ChatInputs, next_call_id
from pageport.backends.tgi_adapter.router.openai.chat_schemas import ChatRequest
from pageport.backends.tgi_adapter.router.openai.merge import merged
from pageport.backends.tgi_adapter.router.openai.tool_stream import (
    ToolDelta,
    ToolStreamReader,
    ToolStreamState,
    tool_stream_reader,
)
from pageport.backends.tgi_adapter.router.sse import DONE, frame

_CHUNK = "chat.completion.chunk"


@dataclass(slots=True)
class ChatStream:
    """One request's stream.

    Attributes:
        usages: of the choices that are complete.
    """

    inference: Inference
    inputs: ChatInputs
    identity: Identity
    call: Call
    request: ChatRequest
    strict: bool
    call_id: str = ""
    usages: list[Usage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.call_id = next_call_id(self.request.messages)

    async def chunks(self, chat: ChatInput) -> AsyncGenerator[bytes]:
        """Framed events. A failure is an event too, and ends its choice."""
        choices = [
            self._choice(index, generate, may_call=chat.may_call)
            for index, generate in enumerate(chat.choices)
        ]
        async with aclosing(merged(choices)) as chunks:
            async for chunk in chunks:
                yield chunk
        if self.request.stream_options.include_usage and len(self.usages) == len(choices):
            yield frame(self.identity.answer(_CHUNK, [], Usage.of_choices(self.usages)))
        yield DONE

    async def _choice(self, index: int, generate: GenerateInput, *, may_call: bool) -> AsyncGenerator[bytes]:
        try:
            reader = tool_stream_reader(strict=self.strict) if may_call else None
            async with aclosing(self._generation(index, generate, reader)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if reader is None or reader.state is not ToolStreamState.NO_TOOL:
                return
            again = self.inputs.without_tools(self.call, self.request).choices[index]
            async with aclosing(self._generation(index, again, None)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except RouterError as error:
            yield frame(error_event(error))

    async def _generation(
        self, index: int, generate: GenerateInput, reader: ToolStreamReader | None
    ) -> AsyncGenerator[bytes]:
        """One answer of the engine; it ends early where it says that no function shall be called."""
        async with self.inference.open(generate) as answer:
            async for events in answer.events:
                chunk = b""
                for event in events:
                    delta = _text_delta(event) if reader is None else self._tool_delta(event, reader)
                    if reader is not None and reader.state is ToolStreamState.NO_TOOL:
                        return
                    if delta is not None:
                        chunk += frame(self._event(index, event, delta, tells_call=reader is not None))
                    if event.generated is not None:
                        tokens = event.generated.generated_tokens
                        self.usages.append(Usage(answer.request.input_length, tokens))
                if chunk:
                    yield chunk

    def _tool_delta(self, event: TokenEvent, reader: ToolStreamReader) -> dict[str, Any] | None:
        delta = reader.push(event.token.text)
        if delta is None:
            return None
        return text_message("") if event.token.special else self._call_delta(delta)

    def _call_delta(self, delta: ToolDelta) -> dict[str, Any]:
        function = {"name": delta.name, "arguments": delta.arguments}
        call = {"index": 0, "id": self.call_id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}

    def _event(
        self, index: int, event: TokenEvent, delta: dict[str, Any], *, tells_call: bool
    ) -> dict[str, Any]:
        shown = None
        if self.request.logprobs:
            calls = delta.get("tool_calls")
            shown = logprobs([event], calls[0]["function"]["arguments"] if tells_call and calls else None)
        end = event.generated
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": shown,
            "finish_reason": None if end is None else finish_reason(end.finish_reason),
        }
        return self.identity.answer(_CHUNK, [choice], None)


def _text_delta(event: TokenEvent) -> dict[str, Any]:
    """Special tokens have no text."""
    return text_message("" if event.token.special else event.token.text)
