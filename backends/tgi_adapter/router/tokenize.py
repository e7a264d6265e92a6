"""`/tokenize`: a prompt's tokens and where they stand in it."""

from __future__ import annotations

import itertools
from typing import Any

from starlette.types import ASGIApp
from tokenizers import Encoding

from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.routing import JsonResponse, RouteSpec
from pageport.backends.tgi_adapter.router.schemas import GenerateRequest


def tokenize_routes(context: RouterContext) -> list[RouteSpec]:
    async def tokenize(call: Call) -> ASGIApp:
        text = call.parse(GenerateRequest).inputs
        encoding = await context.validator.tokenize(text)
        return JsonResponse(token_spans(text, encoding))

    return [RouteSpec("POST", "/tokenize", tokenize)]


def token_spans(text: str, encoding: Encoding) -> list[dict[str, Any]]:
    """Each token with the part of the text that it stands for; `start` and `stop` count bytes of UTF-8."""
    lengths = (len(letter.encode()) for letter in text)
    position = list(itertools.accumulate(lengths, initial=0))
    return [
        {"id": token, "text": text[start:stop], "start": position[start], "stop": position[stop]}
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
    ]
