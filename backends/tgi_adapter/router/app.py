"""The router as one ASGI application."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.native import native_routes
from pageport.backends.tgi_adapter.router.routing import make_routes
from pageport.backends.tgi_adapter.router.security import ApiKey, Cors
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.core import EngineClientProtocol


def create_app(
    settings: RouterSettings, engine: EngineClientProtocol, tokenizer: Tokenizer, model_folder: Path
) -> ASGIApp:
    """TGI's HTTP interface over an engine that has been started."""
    context = RouterContext.build(settings, engine, tokenizer, model_folder)
    specs = [*native_routes(context)]
    app = Starlette(routes=make_routes(specs, ApiKey(settings.api_key), settings.payload_limit))
    app.router.redirect_slashes = False
    return Cors(app, settings.cors_allow_origin)
