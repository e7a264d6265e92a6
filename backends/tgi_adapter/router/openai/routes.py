"""All routes of OpenAI's interface."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp

from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.chat_template import load_chat_template
from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.inference import GenerateInput
from pageport.backends.tgi_adapter.router.openai.chat import ChatRoutes, chat_routes
from pageport.backends.tgi_adapter.router.openai.completions import CompletionRoutes, completion_routes
from pageport.backends.tgi_adapter.router.openai.models import model_routes
from pageport.backends.tgi_adapter.router.routing import RouteSpec


class OpenAiRoutes:
    """The handlers, also for routes that wrap them: see `OpenAiHandlers`.

    Raises:
        ConfigError: the model's chat template cannot be parsed.
    """

    def __init__(self, context: RouterContext) -> None:
        settings = context.settings
        template = load_chat_template(
            context.model_folder, strict=settings.strict, tokenizer_config=settings.tokenizer_config_path
        )
        self._settings = settings
        self._chat = ChatRoutes(context, template)
        self._completions = CompletionRoutes(context)

    @property
    def specs(self) -> list[RouteSpec]:
        return [
            *chat_routes(self._chat),
            *completion_routes(self._completions),
            *model_routes(self._settings),
        ]

    async def chat_completions(self, call: Call) -> ASGIApp:
        return await self._chat.chat_completions(call)

    async def completions(self, call: Call) -> ASGIApp:
        return await self._completions.completions(call)

    async def chat_input(self, call: Call, value: Any) -> GenerateInput:
        return await self._chat.chat_input(call, value)
