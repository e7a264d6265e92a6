"""The description of all routes for tools: TGI's interface, and what this router takes beyond it."""

from __future__ import annotations

import json
from functools import reduce
from importlib.resources import files
from typing import Any

from starlette.types import ASGIApp

from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.routing import JsonResponse, RouteSpec
from pageport.backends.tgi_adapter.router.settings import TGI_VERSION

_STRING_OR_LIST = {
    "oneOf": [{"type": "string"}, {"items": {"type": "string"}, "type": "array"}],
    "nullable": True,
}
_TOKEN_IDS = {"items": {"type": "integer", "format": "int32", "minimum": 0}, "type": "array"}
_NAMED_SCHEMA = {"$ref": "#/components/schemas/JsonSchemaConfig"}

# Where in the document something else is accepted than by TGI, and what.
_SUPERSETS: dict[tuple[str, ...], Any] = {
    ("ChatRequest", "properties", "stop"): _STRING_OR_LIST,
    ("ChatRequest", "properties", "logit_bias"): {
        "additionalProperties": {"format": "float", "type": "number"},
        "nullable": True,
        "type": "object",
    },
    ("ChatRequest", "properties", "max_completion_tokens"): {
        "format": "int32",
        "minimum": 0,
        "nullable": True,
        "type": "integer",
    },
    ("ChatRequest", "properties", "response_format"): {
        "nullable": True,
        "oneOf": [
            {"$ref": "#/components/schemas/GrammarType"},
            {
                "properties": {"type": {"enum": ["text", "json_object"], "type": "string"}},
                "required": ["type"],
                "type": "object",
            },
            {
                "properties": {
                    "type": {"enum": ["json_schema"], "type": "string"},
                    "json_schema": _NAMED_SCHEMA,
                },
                "required": ["type", "json_schema"],
                "type": "object",
            },
        ],
    },
    ("FunctionDefinition", "required"): ["name"],
    ("CompletionRequest", "properties", "stop"): _STRING_OR_LIST,
    ("CompletionRequest", "properties", "n"): {
        "format": "int32",
        "minimum": 1,
        "nullable": True,
        "type": "integer",
    },
    ("Prompt",): {
        "oneOf": [
            {"type": "string"},
            {"items": {"type": "string"}, "type": "array"},
            _TOKEN_IDS,
            {"items": _TOKEN_IDS, "type": "array"},
        ]
    },
}


def openapi_document(*, strict: bool) -> dict[str, Any]:
    """OpenAPI 3.0. With `strict` just TGI's interface."""
    document: dict[str, Any] = json.loads((files(__package__) / "openapi.json").read_text("utf-8"))
    document["info"] = {
        "title": "Pageport's router for Text Generation Inference",
        "version": TGI_VERSION,
        "license": {"name": "Apache-2.0"},
    }
    if not strict:
        for path, value in _SUPERSETS.items():
            *parents, last = path
            reduce(dict.__getitem__, parents, document["components"]["schemas"])[last] = value
        _correct(document)
    return document


def _correct(document: dict[str, Any]) -> None:
    """TGI's document where it says another thing than TGI does, or what OpenAPI 3.0 has no place for."""
    models = document["paths"]["/v1/models"]["get"]["responses"]["200"]["content"]["application/json"]
    models["schema"] = {
        "properties": {
            "object": {"enum": ["list"], "type": "string"},
            "data": {"items": {"$ref": "#/components/schemas/ModelInfo"}, "type": "array"},
        },
        "required": ["object", "data"],
        "type": "object",
    }
    schemas = document["components"]["schemas"]
    whole_answers = {"items": {"$ref": "#/components/schemas/GenerateResponse"}, "type": "array"}
    schemas["SagemakerResponse"]["oneOf"].append(whole_answers)
    for field in schemas["GenerateParameters"]["properties"].values():
        bound = field.get("exclusiveMinimum")
        if bound is not None:  # a switch in OpenAPI 3.0, a number only in later versions
            field |= {"minimum": bound, "exclusiveMinimum": True}


def openapi_routes(*, strict: bool) -> list[RouteSpec]:
    document = openapi_document(strict=strict)

    async def show(call: Call) -> ASGIApp:
        return JsonResponse(document)

    return [RouteSpec("GET", "/api-doc/openapi.json", show, protected=False)]
