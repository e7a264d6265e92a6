"""`/invocations` and `/vertex`: which shape a body is taken for, and what of it counts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_harness import recorded_settings
from scripted_engine import Script, ScriptedEngine
from starlette.applications import Starlette
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.errors import BodyError
from pageport.backends.tgi_adapter.router.inference import GenerateInput
from pageport.backends.tgi_adapter.router.native import NativeRoutes
from pageport.backends.tgi_adapter.router.routing import JsonResponse, make_routes
from pageport.backends.tgi_adapter.router.sagemaker import cloud_routes
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters
from pageport.backends.tgi_adapter.router.security import ApiKey


class StandInHandlers:
    """Takes bodies with `messages` for chats, with `prompt` for completions, and says which it was."""

    async def chat_completions(self, call: Call) -> ASGIApp:
        return self._answer(call, "messages")

    async def completions(self, call: Call) -> ASGIApp:
        return self._answer(call, "prompt")

    async def chat_input(self, call: Call, value: Any) -> GenerateInput:
        if "messages" not in value:
            raise BodyError(422, "messages: missing")
        parameters = GenerateParameters(
            max_new_tokens=3, seed=9, temperature=0.5, decoder_input_details=False
        )
        return GenerateInput(inputs="chat", parameters=parameters, start=call.start, add_special_tokens=False)

    def _answer(self, call: Call, field: str) -> ASGIApp:
        if field not in call.json():
            raise BodyError(422, f"{field}: missing")
        return JsonResponse(field)


@pytest.fixture
def engine(tokenizer: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


@pytest.fixture
async def client(
    engine: ScriptedEngine, tokenizer: Tokenizer, demo_model: Path
) -> AsyncIterator[httpx.AsyncClient]:
    settings = recorded_settings()
    context = RouterContext.build(settings, engine, tokenizer, demo_model)
    specs = cloud_routes(context, NativeRoutes(context), StandInHandlers())
    app = Starlette(routes=make_routes(specs, ApiKey(None), settings.payload_limit))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router") as client:
        yield client
    context.close()


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"inputs": "Hi", "parameters": {"max_new_tokens": 2}}, [{"generated_text": "Hi Deep learning"}]),
        (
            {"inputs": "Hi", "messages": [], "parameters": {"max_new_tokens": 1}},
            [{"generated_text": "Hi Deep"}],
        ),
        ({"inputs": 3, "messages": []}, "messages"),
        ({"prompt": "Hi"}, "prompt"),
    ],
)
async def test_an_invocation_is_the_first_shape_that_fits(
    client: httpx.AsyncClient, body: dict[str, Any], answer: Any
) -> None:
    assert (await client.post("/invocations", json=body)).json() == answer


async def test_an_invocation_can_stream(client: httpx.AsyncClient) -> None:
    body = {"inputs": "Hi", "parameters": {"max_new_tokens": 2}, "stream": True}
    response = await client.post("/invocations", json=body)
    assert response.headers["content-type"] == "text/event-stream"
    assert response.text.count("data: ") == 2


@pytest.mark.parametrize(
    ("content", "status"), [('{"foo": 1}', 422), ("{", 400), ('{"inputs": "", "parameters": {}}', 422)]
)
async def test_invocations_that_are_refused(client: httpx.AsyncClient, content: str, status: int) -> None:
    headers = {"content-type": "application/json"}
    assert (await client.post("/invocations", content=content, headers=headers)).status_code == status


async def test_vertex_answers_every_instance_in_its_place(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.play_in_turn([Script(" one two three", prefill_s=0.05), Script(" four five six")])
    instances = [
        {"inputs": "Hi", "parameters": {"max_new_tokens": 2, "top_k": 5}},
        {"messages": [{"role": "user", "content": "Hi"}]},
    ]
    response = await client.post("/vertex", json={"instances": instances})
    assert response.json() == {"predictions": [" one two", " four five six"]}
    native, chat = (request.sampling for request in engine.submitted)
    assert (native.max_tokens, native.top_k, native.temperature, native.prompt_logprobs) == (2, 0, 1.0, 0)
    assert (chat.max_tokens, chat.seed, chat.temperature, chat.prompt_logprobs) == (3, 9, 1.0, None)


@pytest.mark.parametrize(
    ("instances", "status", "error_type"),
    [
        ([], 422, "Input validation error"),
        ([{"inputs": ""}], 500, "Incomplete generation"),
        ([{"inputs": "Hi"}, {"inputs": ""}], 500, "Incomplete generation"),
    ],
)
async def test_vertex_that_fails(
    client: httpx.AsyncClient, engine: ScriptedEngine, instances: list[Any], status: int, error_type: str
) -> None:
    response = await client.post("/vertex", json={"instances": instances})
    assert (response.status_code, response.json()["error_type"]) == (status, error_type)
    assert engine.num_running == 0


@pytest.mark.parametrize("body", [{"instances": [{"foo": 1}]}, {"instances": 3}, {}])
async def test_vertex_of_no_shape(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    response = await client.post(
        "/vertex", content=json.dumps(body), headers={"content-type": "application/json"}
    )
    assert response.status_code == 422
    assert response.headers["content-type"].startswith("text/plain")
