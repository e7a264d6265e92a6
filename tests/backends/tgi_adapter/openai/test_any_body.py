"""Whatever a client sends to the OpenAI routes, it gets an answer of a known kind, and nothing stays in the engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from asgi_call import AsgiCall
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai_router import Router
from router_harness import recorded_settings
from scripted_engine import Script, ScriptedEngine
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.app import create_app
from pageport.backends.tgi_adapter.router.openai.chat_schemas import ChatRequest
from pageport.backends.tgi_adapter.router.openai.completion_schemas import CompletionRequest

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.integers(-3, 6)
    | st.floats()
    | st.text(max_size=4)
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=fields)


SCHEMAS = JSON | objects(
    type=st.sampled_from(["object", "array"]),
    properties=st.dictionaries(st.text(max_size=3), objects(type=st.just("string")) | JSON, max_size=2),
    required=st.lists(st.text(max_size=3), max_size=2) | JSON,
    **{"$defs": JSON, "$ref": st.sampled_from(["#", "#/properties/a", "other", 5])},
)
FUNCTIONS = objects(name=st.text(max_size=3), description=st.text(max_size=3), parameters=SCHEMAS)
TOOLS = st.lists(objects(type=st.just("function"), function=FUNCTIONS | JSON) | JSON, max_size=2)
VALID_TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries(
                {"name": st.text(max_size=3)}, optional={"parameters": SCHEMAS}
            ),
        }
    ),
    max_size=3,
)
HI = [{"role": "user", "content": "Hi"}]
FORMATS = objects(
    type=st.sampled_from(["text", "json", "json_object", "json_schema", "regex"]),
    value=SCHEMAS,
    json_schema=objects(name=st.text(max_size=3), schema=SCHEMAS) | JSON,
)
PARTS = st.lists(
    objects(type=st.sampled_from(["text", "image_url"]), text=SCALARS, image_url=objects(url=st.text()))
    | JSON,
    max_size=2,
)
CALLS = st.lists(
    objects(
        id=st.text(max_size=3), type=st.just("function"), function=objects(name=st.text(), arguments=JSON)
    )
    | JSON,
    max_size=2,
)
MESSAGES = st.lists(
    objects(
        role=st.sampled_from(["user", "assistant", "tool"]) | SCALARS,
        content=st.text(max_size=5) | PARTS | SCALARS,
        tool_calls=CALLS | JSON,
        calls=JSON,
    )
    | JSON,
    max_size=3,
)
SPECIAL = {
    "messages": MESSAGES,
    "tools": TOOLS | JSON,
    "tool_choice": st.sampled_from(["auto", "none", "required", "f"]) | JSON,
    "response_format": FORMATS | JSON,
    "stream_options": objects(include_usage=SCALARS) | JSON,
    "logit_bias": st.dictionaries(st.sampled_from(["1", "-1", "x", "9" * 30, "1" * 5000]), SCALARS) | JSON,
    "prompt": st.lists(st.integers(-1, 50_000), max_size=3)
    | st.lists(st.text(max_size=3), max_size=3)
    | JSON,
    "stop": st.lists(st.text(max_size=2), max_size=3) | SCALARS,
    "max_completion_tokens": SCALARS,
}
NUMBERS = st.integers(1, 3) | st.floats(0.125, 1.0) | SCALARS
FIELDS = {
    name: SPECIAL.get(name, NUMBERS)
    for name in {*ChatRequest.model_fields, *CompletionRequest.model_fields, *SPECIAL}
}
# Few of them, or nearly every body would have a field that is refused before anything else is looked at.
OPTIONAL = st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
)
STARTS = (
    st.just({"messages": HI})
    | st.just({"prompt": "Hi"})
    | st.fixed_dictionaries({"messages": st.just(HI), "tools": VALID_TOOLS})
    | st.fixed_dictionaries({"messages": st.just(HI), "response_format": FORMATS})
    | st.fixed_dictionaries({"messages": MESSAGES})
    | st.fixed_dictionaries({"prompt": SPECIAL["prompt"]})
)
STREAM = st.sampled_from([{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
BODIES = (
    st.builds(lambda start, stream, others: {**start, **stream, **others}, STARTS, STREAM, OPTIONAL) | JSON
)
PATHS = st.sampled_from(
    ["/v1/chat/completions", "/v1/completions", "/chat_tokenize", "/invocations", "/vertex"]
)
SCRIPTS = st.sampled_from(
    [
        " text",
        '{"function": {"_name": "f", "a": 1}}',
        '{"function": {"_name": "no_tool"}}',
        '{"function": {"_name": "\\',
    ]
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=BODIES, path=PATHS, script=SCRIPTS, strict=st.booleans())
def test_any_body(
    tokenizer: Tokenizer, demo_model: Path, body: Any, path: str, script: str, strict: bool
) -> None:
    if path == "/vertex":
        body = {"instances": [body]}
    asyncio.run(send(tokenizer, demo_model, body, path, script, strict=strict))


async def send(
    tokenizer: Tokenizer, folder: Path, body: Any, path: str, script: str, *, strict: bool
) -> None:
    engine = ScriptedEngine(tokenizer)
    engine.play(Script(script))
    app = create_app(recorded_settings(strict=strict, max_concurrent_requests=8), engine, tokenizer, folder)
    call = AsgiCall(app, "POST", path, body)
    await call.wait()
    assert call.status in (200, 400, 422, 429, 500 if path == "/vertex" else 200)
    if call.status == 200 and call.body.startswith(b"data: "):
        assert call.events[-1] == "[DONE]"
    elif call.status == 200:
        json.loads(call.body)
    else:
        assert call.body
    assert engine.num_running == 0


@pytest.mark.parametrize(("depth", "status"), [(100, 422), (127, 422), (128, 400), (1000, 400)])
async def test_nested_bodies(router: Router, depth: int, status: int) -> None:
    """Beyond what TGI reads; its reader stops at the same depth."""
    body = '{"messages": [], "tools": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
    headers = {"content-type": "application/json"}
    for path in ("/v1/chat/completions", "/invocations"):
        assert (await router.client.post(path, content=body, headers=headers)).status_code == status


async def test_nested_schema_as_text(router: Router) -> None:
    schema = '{"properties":' * 5000 + "{}" + "}" * 5000
    response = await router.chat(response_format={"type": "json", "value": schema})
    assert (response.status_code, response.json()["error_type"]) == (422, "validation")


async def test_numbers_in_text_that_are_too_long(router: Router) -> None:
    long = "1" * 5000
    assert (await router.chat(logit_bias={long: 1})).status_code == 422
    call = {"id": long, "type": "function", "function": {"name": "f", "arguments": {}}}
    history = [{"role": "assistant", "tool_calls": [call]}]
    assert (await router.chat_events(messages=history, max_tokens=2))[-1] == "[DONE]"
