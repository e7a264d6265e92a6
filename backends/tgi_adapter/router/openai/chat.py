"""`/v1/chat/completions` and `/chat_tokenize`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.chat_template import ChatTemplate
from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.errors import RouterError
from pageport.backends.tgi_adapter.router.headers import answer_headers, stream_headers
from pageport.backends.tgi_adapter.router.inference import GenerateInput, WholeAnswer, all_of
from pageport.backends.tgi_adapter.router.openai.answers import (
    Identity,
    Usage,
    call_message,
    finish_reason,
    logprobs,
    text_message,
)
from pageport.backends.tgi_adapter.router.openai.chat_input import ChatInput, ChatInputs
from pageport.backends.tgi_adapter.router.openai.chat_schemas import ChatRequest
from pageport.backends.tgi_adapter.router.openai.chat_stream import ChatStream
from pageport.backends.tgi_adapter.router.openai.supersets import read_chat
from pageport.backends.tgi_adapter.router.openai.tools import parse_call
from pageport.backends.tgi_adapter.router.routing import JsonResponse, RouteSpec
from pageport.backends.tgi_adapter.router.sse import EventStream
from pageport.backends.tgi_adapter.router.tokenize import token_spans


def chat_routes(routes: ChatRoutes) -> list[RouteSpec]:
    return [
        RouteSpec("POST", "/v1/chat/completions", routes.chat_completions),
        RouteSpec("POST", "/chat_tokenize", routes.chat_tokenize, protected=False),
    ]


@dataclass(frozen=True, slots=True)
class _Choice:
    """One complete choice.

    Attributes:
        answer: what the engine said first; where that was to call no function, `last` is what it said then.
        prompt: of the last.
    """

    message: dict[str, Any]
    answer: WholeAnswer
    last: WholeAnswer
    prompt: str

    @property
    def usage(self) -> Usage:
        """As in TGI: the prompt of the last, the tokens of the first."""
        return Usage(self.last.request.input_length, self.answer.generated.generated_tokens)


class ChatRoutes:
    """The handlers."""

    def __init__(self, context: RouterContext, template: ChatTemplate | None) -> None:
        self._context = context
        self._inputs = ChatInputs(context.settings, template, context.tokenizer.get_vocab_size())
        self._compute_type = context.settings.compute_type

    async def chat_completions(self, call: Call) -> ASGIApp:
        request = self._read(call.json())
        self._context.metrics.requests.inc()
        with self._counted_failures():
            chat = self._inputs.make(call, request)
        identity = Identity.of(self._context.settings, request.model)
        if request.stream:
            stream = ChatStream(
                self._context.inference, self._inputs, identity, call, request, self._context.settings.strict
            )
            return EventStream(stream.chunks(chat), stream_headers(self._compute_type, chat.num_characters))
        return await self._whole(call, request, chat, identity)

    async def chat_tokenize(self, call: Call) -> ASGIApp:
        request = self._read(call.json())
        self._context.metrics.requests.inc()
        with self._counted_failures():
            text = self._inputs.make(call, request).choices[0].inputs
        encoding = await self._context.validator.tokenize(text, add_special_tokens=False)
        return JsonResponse({"tokenize_response": token_spans(text, encoding), "templated_text": text})

    async def chat_input(self, call: Call, value: Any) -> GenerateInput:
        """See `OpenAiHandlers`."""
        with self._counted_failures():
            return self._inputs.make(call, self._read(value)).choices[0]

    def _read(self, value: Any) -> ChatRequest:
        return read_chat(value, strict=self._context.settings.strict)

    async def _whole(self, call: Call, request: ChatRequest, chat: ChatInput, identity: Identity) -> ASGIApp:
        choices = await all_of(
            self._choice(call, request, index, generate, may_call=chat.may_call)
            for index, generate in enumerate(chat.choices)
        )
        body = identity.answer(
            "chat.completion",
            [_choice_body(index, choice, request) for index, choice in enumerate(choices)],
            Usage.of_choices([choice.usage for choice in choices]),
        )
        headers = answer_headers(self._compute_type, len(choices[0].prompt), choices[0].last)
        return JsonResponse(body, headers=headers)

    async def _choice(
        self, call: Call, request: ChatRequest, index: int, generate: GenerateInput, *, may_call: bool
    ) -> _Choice:
        answer = await self._context.inference.generate(generate)
        if not may_call:
            return _Choice(text_message(answer.generated.text), answer, answer, generate.inputs)
        written = parse_call(answer.generated.text)
        if not written.is_none:
            return _Choice(call_message(written), answer, answer, generate.inputs)
        again = self._inputs.without_tools(call, request).choices[index]
        last = await self._context.inference.generate(again)
        return _Choice(text_message(last.generated.text), answer, last, again.inputs)

    @contextmanager
    def _counted_failures(self) -> Iterator[None]:
        """Of what never reached the engine."""
        try:
            yield
        except RouterError as error:
            self._context.metrics.failed(error.kind)
            raise


def _choice_body(index: int, choice: _Choice, request: ChatRequest) -> dict[str, Any]:
    return {
        "index": index,
        "message": choice.message,
        "logprobs": logprobs(choice.answer.events) if request.logprobs else None,
        "finish_reason": finish_reason(choice.answer.generated.finish_reason),
    }
