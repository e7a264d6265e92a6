"""TGI's own routes: `/generate`, `/generate_stream` and `POST /`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from numpy import float32
from starlette.types import ASGIApp

from pageport.backends.tgi_adapter.generation import PrefillToken, Token, TokenEvent
from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.errors import RouterError
from pageport.backends.tgi_adapter.router.headers import answer_headers, stream_headers
from pageport.backends.tgi_adapter.router.inference import Answer, GenerateInput, WholeAnswer
from pageport.backends.tgi_adapter.router.routing import JsonResponse, RouteSpec
from pageport.backends.tgi_adapter.router.schemas import CompatGenerateRequest, GenerateRequest
from pageport.backends.tgi_adapter.router.sse import EventStream, frame


def native_routes(routes: NativeRoutes) -> list[RouteSpec]:
    return [
        RouteSpec("POST", "/", routes.compat),
        RouteSpec("POST", "/generate", routes.generate),
        RouteSpec("POST", "/generate_stream", routes.generate_stream),
    ]


class NativeRoutes:
    """The handlers."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self._compute_type = context.settings.compute_type
        # As in TGI: where the model's task is text generation, or unknown, the prompt is part of the answer.
        self._compat_full_text = context.settings.model_pipeline_tag in (None, "text-generation")

    async def generate(self, call: Call) -> ASGIApp:
        request = call.parse(GenerateRequest)
        full_text = bool(request.parameters.return_full_text)
        return await self._whole(call, request, full_text=full_text, as_list=False)

    async def generate_stream(self, call: Call) -> ASGIApp:
        request = call.parse(GenerateRequest)
        return self._stream(call, request, full_text=bool(request.parameters.return_full_text))

    async def compat(self, call: Call) -> ASGIApp:
        return await self.compat_generate(call, call.parse(CompatGenerateRequest))

    async def compat_generate(self, call: Call, request: CompatGenerateRequest) -> ASGIApp:
        asked = request.parameters.return_full_text
        full_text = self._compat_full_text if asked is None else asked
        if request.stream:
            return self._stream(call, request, full_text=full_text)
        return await self._whole(call, request, full_text=full_text, as_list=True)

    async def _whole(
        self, call: Call, request: GenerateRequest, *, full_text: bool, as_list: bool
    ) -> ASGIApp:
        answer = await self._context.inference.generate(_to_input(call, request, stream=False))
        before = request.inputs if full_text else ""
        parameters = request.parameters
        body: dict[str, Any] = {"generated_text": before + answer.generated.text}
        if parameters.details or parameters.decoder_input_details:
            body["details"] = _details(answer, before)
        headers = answer_headers(self._compute_type, len(request.inputs), answer)
        return JsonResponse([body] if as_list else body, headers=headers)

    def _stream(self, call: Call, request: GenerateRequest, *, full_text: bool) -> ASGIApp:
        chunks = self._chunks(_to_input(call, request, stream=True), full_text=full_text)
        return EventStream(chunks, stream_headers(self._compute_type, len(request.inputs)))

    async def _chunks(self, request: GenerateInput, *, full_text: bool) -> AsyncGenerator[bytes]:
        """Framed events; those that came together, together. A failure is the last event, with status 200."""
        before = request.inputs if full_text else ""
        index = 0
        try:
            async with self._context.inference.open(request) as answer:
                async for events in answer.events:
                    chunk = b""
                    for event in events:
                        index += 1
                        chunk += frame(_stream_event(index, event, request, answer, before))
                    yield chunk
        except RouterError as error:
            yield frame(error.body)


def _to_input(call: Call, request: GenerateRequest, *, stream: bool) -> GenerateInput:
    return GenerateInput(
        inputs=request.inputs,
        parameters=request.parameters,
        start=call.start,
        route="generate_stream" if stream else "generate",
        stream=stream,
        service_class=call.service_class,
        trace_context=call.trace_context,
    )


def _token(token: Token) -> dict[str, Any]:
    return {"id": token.id, "text": token.text, "logprob": float32(token.logprob), "special": token.special}


def _prefill_token(token: PrefillToken) -> dict[str, Any]:
    logprob = None if token.logprob is None else float32(token.logprob)
    return {"id": token.id, "text": token.text, "logprob": logprob}


def _stream_event(
    index: int, event: TokenEvent, request: GenerateInput, answer: Answer, before: str
) -> dict[str, Any]:
    body: dict[str, Any] = {"index": index, "token": _token(event.token)}
    if event.top_tokens:
        body["top_tokens"] = [_token(token) for token in event.top_tokens]
    end = event.generated
    body["generated_text"] = None if end is None else before + end.text
    body["details"] = None
    if end is not None and request.parameters.details:
        body["details"] = {
            "finish_reason": end.finish_reason,
            "generated_tokens": end.generated_tokens,
            "seed": end.seed,
            "input_length": answer.request.input_length,
        }
    return body


def _details(answer: WholeAnswer, before: str) -> dict[str, Any]:
    details = _sequence(answer)
    if answer.best_of_sequences:
        details["best_of_sequences"] = [
            {"generated_text": before + other.generated.text, **_sequence(other)}
            for other in answer.best_of_sequences
        ]
    return details


def _sequence(answer: WholeAnswer) -> dict[str, Any]:
    end = answer.generated
    body: dict[str, Any] = {
        "finish_reason": end.finish_reason,
        "generated_tokens": end.generated_tokens,
        "seed": end.seed,
        "prefill": [_prefill_token(token) for token in answer.prefill],
        "tokens": [_token(event.token) for event in answer.events],
    }
    if any(event.top_tokens for event in answer.events):
        body["top_tokens"] = [[_token(token) for token in event.top_tokens] for event in answer.events]
    return body
