"""What becomes of OpenAI requests whose clients leave, how they are counted, and whom they are served as."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from asgi_call import AsgiCall
from openai_router import MESSAGES, Router
from router_harness import recorded_settings
from scripted_engine import Script, ScriptedEngine
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.app import create_app
from pageport.core import ServiceClass

TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("path", "body", "running"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, 1),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True, "n": 3}, 3),
        ("/v1/completions", {"prompt": ["a", "b"], "stream": True}, 2),
    ],
)
async def test_a_client_that_leaves_a_stream(
    tokenizer: Tokenizer, demo_model: Path, path: str, body: dict[str, Any], running: int
) -> None:
    engine = ScriptedEngine(tokenizer, step_s=0.005)
    engine.play(Script(" word", eos=False))
    call = AsgiCall(create_app(recorded_settings(), engine, tokenizer, demo_model), "POST", path, body)
    await call.wait_events(3)
    assert engine.num_running == running
    await call.leave()
    assert engine.num_running == 0
    assert all(request.aborted for request in engine.submitted)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "n": 3}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOL]}),
    ],
)
async def test_a_client_that_leaves_before_a_whole_answer(
    tokenizer: Tokenizer, demo_model: Path, path: str, body: dict[str, Any]
) -> None:
    engine = ScriptedEngine(tokenizer, step_s=0.005)
    engine.play_in_turn([Script('{"function": {"_name": "no_tool"}}')] if "tools" in body else [])
    engine.play(Script(" word", eos=False))
    call = AsgiCall(create_app(recorded_settings(), engine, tokenizer, demo_model), "POST", path, body)
    while len(engine.submitted) < 2:
        await engine._pause()
    await call.leave()
    assert engine.num_running == 0
    assert engine.submitted[-1].aborted


async def test_one_of_several_choices_that_fails_ends_a_whole_answer(router: Router) -> None:
    router.engine.play_in_turn([Script(" word", eos=False), Script(prefill_error="out of blocks")])
    response = await router.chat(n=2)
    assert (response.status_code, response.json()["error_type"]) == (424, "generation")
    assert router.engine.num_running == 0


async def count(router: Router, name: str) -> float:
    page = (await router.client.get("/metrics")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(
    ("path", "body", "requests"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}, 2),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}, 2),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOL]}, 3),
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOL], "stream": True}, 3),
        ("/chat_tokenize", {"messages": MESSAGES}, 1),
        ("/v1/completions", {"prompt": ["a", "b"]}, 3),
        ("/v1/completions", {"prompt": ["a", "b"], "stream": True}, 3),
    ],
)
async def test_requests_are_counted_as_in_tgi(
    router: Router, path: str, body: dict[str, Any], requests: int
) -> None:
    """Once by the route, and once for each generation."""
    router.engine.play_in_turn([Script('{"function": {"_name": "no_tool"}}')] if "tools" in body else [])
    assert (await router.client.post(path, json=body)).status_code == 200
    assert await count(router, "tgi_request_count") == requests


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/completions", {"prompt": "Hi", "suffix": ""}, "validation"),
        ("/v1/completions", {"prompt": ["a"] * 5}, "validation"),
        ("/v1/chat/completions", {"messages": MESSAGES, "top_p": 2}, "validation"),
    ],
)
async def test_failures_are_counted(router: Router, path: str, body: dict[str, Any], kind: str) -> None:
    assert (await router.client.post(path, json=body)).status_code == 422
    assert await count(router, f'tgi_request_failure{{err="{kind}"}}') == 1


async def test_wrong_tools_are_no_failures_to_tgi(router: Router) -> None:
    assert (await router.chat(tools=[], tool_choice="f")).json()["error_type"] == "tool_error"
    page = (await router.client.get("/metrics")).text
    assert not re.search("^tgi_request_failure", page, re.MULTILINE)


async def test_service_class_and_times(router: Router) -> None:
    headers = {"x-pageport-service-class": "batch"}
    for path, body in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": "Hi"}),
    ):
        assert (await router.client.post(path, json=body, headers=headers)).status_code == 200
        assert router.engine.submitted[-1].service_class is ServiceClass.BATCH
        refused = await router.client.post(path, json=body, headers={"x-pageport-service-class": "x"})
        assert (refused.status_code, refused.json()["error_type"]) == (422, "validation")
