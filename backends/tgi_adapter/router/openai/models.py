"""`/v1/models`, and OpenAI's routes that a model of text has no answer to."""

from __future__ import annotations

from starlette.types import ASGIApp

from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.errors import ErrorKind, RouterError
from pageport.backends.tgi_adapter.router.routing import Handler, JsonResponse, RouteSpec
from pageport.backends.tgi_adapter.router.settings import RouterSettings

_UNSUPPORTED = ("/v1/embeddings", "/v1/responses")


def model_routes(settings: RouterSettings) -> list[RouteSpec]:
    """With `strict`, what TGI has no route for has none here."""
    routes = [RouteSpec("GET", "/v1/models", _models(settings.model_id), protected=False)]
    return routes if settings.strict else [*routes, *map(_unsupported, _UNSUPPORTED)]


def _models(model_id: str) -> Handler:
    model = {"id": model_id, "object": "model", "created": 0, "owned_by": model_id}

    async def models(call: Call) -> ASGIApp:
        return JsonResponse({"object": "list", "data": [model]})

    return models


def _unsupported(path: str) -> RouteSpec:
    async def refuse(call: Call) -> ASGIApp:
        raise RouterError(
            ErrorKind.NOT_FOUND,
            f"{path}: this server does not have it; it has /v1/chat/completions and /v1/completions",
        )

    return RouteSpec("POST", path, refuse)
