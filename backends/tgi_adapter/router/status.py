"""What monitors and people ask a server: is it well, what is it, what has it done."""

from __future__ import annotations

from html import escape

from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.errors import ErrorKind, RouterError
from pageport.backends.tgi_adapter.router.exposition import CONTENT_TYPE
from pageport.backends.tgi_adapter.router.routing import JsonResponse, RouteSpec
from pageport.backends.tgi_adapter.router.settings import TGI_VERSION


def status_routes(context: RouterContext) -> list[RouteSpec]:
    routes = _StatusRoutes(context)
    return [
        RouteSpec("GET", "/", routes.health, protected=False),
        RouteSpec("GET", "/health", routes.health, protected=False),
        RouteSpec("GET", "/ping", routes.health, protected=False),
        RouteSpec("GET", "/info", routes.info, protected=False),
        RouteSpec("GET", "/metrics", routes.metrics, protected=False),
    ]


class _StatusRoutes:
    def __init__(self, context: RouterContext) -> None:
        self._context = context

    async def health(self, call: Call) -> ASGIApp:
        if not await self._context.inference.is_healthy():
            raise RouterError(ErrorKind.UNHEALTHY, "unhealthy")
        return Response()

    async def info(self, call: Call) -> ASGIApp:
        settings = self._context.settings
        return JsonResponse(
            {
                "model_id": settings.model_id,
                "model_sha": settings.model_sha,
                "model_pipeline_tag": settings.model_pipeline_tag,
                "max_concurrent_requests": settings.max_concurrent_requests,
                "max_best_of": settings.max_best_of,
                "max_stop_sequences": settings.max_stop_sequences,
                "max_input_tokens": settings.max_input_tokens,
                "max_total_tokens": settings.max_total_tokens,
                "validation_workers": settings.validation_workers,
                "max_client_batch_size": settings.max_client_batch_size,
                "router": "text-generation-router",
                "version": TGI_VERSION,
                "sha": None,
                "docker_label": settings.docker_label,
            }
        )

    async def metrics(self, call: Call) -> ASGIApp:
        return Response(self._context.metrics.page(), headers={"content-type": CONTENT_TYPE})


def docs_routes(others: list[RouteSpec]) -> list[RouteSpec]:
    """A page that lists the other routes, and a redirect to it."""
    lines = "".join(f"<li><code>{spec.method} {escape(spec.path)}</code></li>" for spec in others)
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Text generation</title>"
        "<h1>Text generation</h1><p>The description of all routes, for tools: "
        f'<a href="/api-doc/openapi.json">OpenAPI</a>.</p><ul>{lines}</ul></html>'
    )

    async def redirect(call: Call) -> ASGIApp:
        return Response(status_code=303, headers={"location": "/docs/"})

    async def show(call: Call) -> ASGIApp:
        return HTMLResponse(page)

    return [
        RouteSpec("GET", "/docs", redirect, protected=False),
        RouteSpec("GET", "/docs/", show, protected=False),
    ]
