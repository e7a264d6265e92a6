"""The router as one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.native import NativeRoutes, native_routes
from pageport.backends.tgi_adapter.router.openai.routes import OpenAiRoutes
from pageport.backends.tgi_adapter.router.openapi import openapi_routes
from pageport.backends.tgi_adapter.router.routing import make_routes
from pageport.backends.tgi_adapter.router.sagemaker import cloud_routes
from pageport.backends.tgi_adapter.router.security import ApiKey, Cors
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.backends.tgi_adapter.router.status import docs_routes, status_routes
from pageport.backends.tgi_adapter.router.tokenize import tokenize_routes
from pageport.core import EngineClientProtocol


def create_app(
    settings: RouterSettings, engine: EngineClientProtocol, tokenizer: Tokenizer, model_folder: Path
) -> ASGIApp:
    """TGI's HTTP interface over an engine that has been started.

    Raises:
        ConfigError: settings that this engine cannot honour, or a chat template that cannot be parsed.
    """
    context = RouterContext.build(settings.resolved(engine.info), engine, tokenizer, model_folder)
    native = NativeRoutes(context)
    openai = OpenAiRoutes(context)
    specs = [*status_routes(context), *native_routes(native), *tokenize_routes(context)]
    specs += [*openai.specs, *cloud_routes(context, native, openai)]
    specs += openapi_routes(strict=settings.strict)
    specs += docs_routes(specs)
    app = Starlette(
        routes=make_routes(specs, ApiKey(settings.api_key), settings.payload_limit),
        exception_handlers={404: _not_found},
        lifespan=lambda app: _closing(context),
    )
    app.router.redirect_slashes = False
    return Cors(app, settings.cors_allow_origin)


@asynccontextmanager
async def _closing(context: RouterContext) -> AsyncIterator[None]:
    try:
        yield
    finally:
        context.close()


async def _not_found(request: Request, error: Exception) -> Response:
    """An empty body, as TGI's framework gives."""
    return Response(status_code=404)
