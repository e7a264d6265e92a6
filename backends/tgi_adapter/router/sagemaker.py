"""`/invocations` and `/vertex`: the bodies of other routes, as two cloud platforms wrap them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from pydantic import Field
from starlette.types import ASGIApp

from pageport.backends.tgi_adapter.router.call import Call, read_model
from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.errors import BodyError, ErrorKind, RouterError
from pageport.backends.tgi_adapter.router.inference import GenerateInput, all_of
from pageport.backends.tgi_adapter.router.native import NativeRoutes
from pageport.backends.tgi_adapter.router.routing import JsonResponse, RouteSpec
from pageport.backends.tgi_adapter.router.schemas import (
    Body,
    CompatGenerateRequest,
    GenerateParameters,
    UInt32,
    UInt64,
)


class OpenAiHandlers(Protocol):
    """What is needed here of the OpenAI routes. All raise BodyError where a body is not of their shape."""

    async def chat_completions(self, call: Call) -> ASGIApp: ...

    async def completions(self, call: Call) -> ASGIApp: ...

    async def chat_input(self, call: Call, value: Any) -> GenerateInput:
        """The request behind a decoded chat body, without tools. Raises RouterError (template) too."""
        ...


class VertexParameters(Body):
    """The only parameters that count there."""

    max_new_tokens: UInt32 | None = None
    seed: UInt64 | None = None


class VertexGenerate(Body):
    """A native instance."""

    inputs: str
    parameters: VertexParameters = Field(default_factory=VertexParameters)


class VertexRequest(Body):
    """The body of `/vertex`. Each instance is a `VertexGenerate` or a chat request."""

    instances: list[dict[str, Any]]


def cloud_routes(context: RouterContext, native: NativeRoutes, openai: OpenAiHandlers) -> list[RouteSpec]:
    routes = _CloudRoutes(context, native, openai)
    return [
        RouteSpec("POST", "/invocations", routes.invocations),
        RouteSpec("POST", "/vertex", routes.vertex),
    ]


class _CloudRoutes:
    def __init__(self, context: RouterContext, native: NativeRoutes, openai: OpenAiHandlers) -> None:
        self._context = context
        self._native = native
        self._openai = openai

    async def invocations(self, call: Call) -> ASGIApp:
        """The first of the three shapes that the body has."""
        for handler in (self._generate, self._openai.chat_completions, self._openai.completions):
            try:
                return await handler(call)
            except BodyError as error:
                if error.status != 422:
                    raise
        raise BodyError(422, "the body: must be a generate, a chat or a completion request")

    async def _generate(self, call: Call) -> ASGIApp:
        return await self._native.compat_generate(call, call.parse(CompatGenerateRequest))

    async def vertex(self, call: Call) -> ASGIApp:
        """One text for each instance. Whatever fails is a 500, as in TGI."""
        instances = call.parse(VertexRequest).instances
        if not instances:
            raise RouterError(ErrorKind.VERTEX_INPUT, "instances: must have at least one entry (given: 0)")
        requests = [await self._instance(call, value) for value in instances]
        generate = self._context.inference.generate
        try:
            answers = await all_of(generate(request) for request in requests)
        except RouterError as error:
            raise RouterError(ErrorKind.VERTEX_GENERATION, error.message) from error
        return JsonResponse({"predictions": [answer.generated.text for answer in answers]})

    async def _instance(self, call: Call, value: dict[str, Any]) -> GenerateInput:
        try:
            request = read_model(VertexGenerate, value)
        except BodyError:
            chat = await self._openai.chat_input(call, value)
            return replace(
                chat, parameters=_vertex_parameters(chat.parameters.max_new_tokens, chat.parameters.seed)
            )
        asked = request.parameters
        return GenerateInput(
            inputs=request.inputs,
            parameters=_vertex_parameters(asked.max_new_tokens, asked.seed, decoder_input_details=True),
            start=call.start,
            service_class=call.service_class,
            trace_context=call.trace_context,
        )


def _vertex_parameters(
    max_new_tokens: int | None, seed: int | None, *, decoder_input_details: bool = False
) -> GenerateParameters:
    """All instances are sampled."""
    return GenerateParameters(
        do_sample=True,
        max_new_tokens=max_new_tokens,
        seed=seed,
        decoder_input_details=decoder_input_details,
    )
