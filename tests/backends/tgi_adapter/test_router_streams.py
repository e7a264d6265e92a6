"""What happens while an answer is under way: clients that leave, silence, failures, tokens that come together."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from asgi_call import AsgiCall
from router_harness import recorded_settings
from scripted_engine import Script, ScriptedEngine
from starlette.types import ASGIApp
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router import sse
from pageport.backends.tgi_adapter.router.app import create_app
from pageport.core import EngineDeadError, InvalidRequestError, RequestOutput, SamplingParams, ServiceClass

ENDLESS = Script(" one two three", eos=False)
STALLED = Script(" one two three", eos=False, stall_at=2)


@pytest.fixture
def engine(tokenizer: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer)


@pytest.fixture
def app(engine: ScriptedEngine, tokenizer: Tokenizer, demo_model: Path) -> ASGIApp:
    return create_app(recorded_settings(("--max-concurrent-requests", "2")), engine, tokenizer, demo_model)


def generate(app: ASGIApp, path: str = "/generate_stream", **parameters: Any) -> AsgiCall:
    return AsgiCall(app, "POST", path, {"inputs": "What is Deep Learning?", "parameters": parameters})


async def metric(app: ASGIApp, name: str) -> float:
    call = AsgiCall(app, "GET", "/metrics")
    await call.wait()
    return next(
        (float(line.split()[-1]) for line in call.body.decode().splitlines() if line.startswith(name)), 0.0
    )


async def test_a_client_that_leaves_a_stream_ends_its_request(app: ASGIApp, engine: ScriptedEngine) -> None:
    engine.play(STALLED)
    call = generate(app)
    await call.wait_events(2)
    assert engine.num_running == 1
    await call.leave()
    assert engine.num_running == 0
    assert engine.submitted[0].aborted
    assert await metric(app, 'tgi_request_failure{err="dropped"}') == 1


@pytest.mark.parametrize("parameters", [{}, {"best_of": 2, "do_sample": True}])
async def test_a_client_that_leaves_a_whole_answer_ends_its_requests(
    app: ASGIApp, engine: ScriptedEngine, parameters: dict[str, Any]
) -> None:
    engine.play(STALLED)
    call = generate(app, "/generate", **parameters)
    while engine.num_running < parameters.get("best_of", 1):
        await asyncio.sleep(0)
    await call.leave()
    assert engine.num_running == 0
    assert all(request.aborted for request in engine.submitted)


async def test_a_place_is_free_again_after_a_client_has_left(app: ASGIApp, engine: ScriptedEngine) -> None:
    engine.play(STALLED)
    calls = [generate(app), generate(app)]
    for call in calls:
        await call.wait_events(1)
    refused = generate(app, "/generate")
    await refused.wait()
    assert refused.status == 429
    await calls[0].leave()
    engine.play(Script())
    served = generate(app, "/generate")
    await served.wait()
    assert served.status == 200
    await calls[1].leave()


async def test_many_clients_that_come_and_go_leave_nothing(
    engine: ScriptedEngine, tokenizer: Tokenizer, demo_model: Path
) -> None:
    app = create_app(recorded_settings(("--max-concurrent-requests", "64")), engine, tokenizer, demo_model)
    engine.play(ENDLESS)
    draws = random.Random(7)
    complete = 0

    async def visitor() -> None:
        nonlocal complete
        for _ in range(8):
            path = draws.choice(("/generate", "/generate_stream"))
            call = generate(app, path, max_new_tokens=draws.randint(1, 30))
            if draws.random() < 0.5:
                await call.wait_events(draws.randint(0, 10))
                await call.leave()
            else:
                await call.wait()
                assert call.status == 200
                assert b"overloaded" not in call.body
                complete += 1

    await asyncio.gather(*(visitor() for _ in range(64)))
    assert engine.num_running == 0
    assert len(engine.submitted) == 512
    assert await metric(app, "tgi_request_success") >= complete
    dropped = await metric(app, 'tgi_request_failure{err="dropped"}')
    assert await metric(app, "tgi_request_success") + dropped == 512


async def test_silence_is_filled_with_comments(
    app: ASGIApp, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.02)
    engine.play(STALLED)
    call = generate(app)
    async with asyncio.timeout(30):
        while call.chunks.count(b":\n\n") < 3:
            await asyncio.sleep(0.01)
    assert call.chunks[-1] == b":\n\n"
    assert [event["token"]["text"] for event in call.events] == [" one", " two"]
    await call.leave()


async def test_tokens_that_come_together_leave_together(app: ASGIApp, engine: ScriptedEngine) -> None:
    engine.play(Script(tokens=((582, 827), (1296,), (2,))))
    call = generate(app)
    await call.wait()
    assert [chunk.count(b"data: ") for chunk in call.chunks] == [2, 1, 1]
    assert [event["index"] for event in call.events] == [1, 2, 3, 4]


async def test_a_stream_without_an_end_says_so(app: ASGIApp, engine: ScriptedEngine) -> None:
    engine.play(Script(no_tokens=True))
    call = generate(app)
    await call.wait()
    assert [event["error_type"] for event in call.events] == ["incomplete_generation_stream"]
    whole = generate(app, "/generate")
    await whole.wait()
    assert (whole.status, json.loads(whole.body)["error_type"]) == (500, "incomplete_generation")


async def test_more_than_a_round_of_tokens_are_exactly_as_many(
    engine: ScriptedEngine, tokenizer: Tokenizer, demo_model: Path
) -> None:
    engine.play(ENDLESS)
    settings = recorded_settings(max_input_tokens=4000, max_total_tokens=4096)
    call = generate(create_app(settings, engine, tokenizer, demo_model), max_new_tokens=1500)
    await call.wait()
    assert [event["index"] for event in call.events] == list(range(1, 1501))
    assert len(call.events[-1]["generated_text"].split()) == 1500


async def test_a_strict_router_rounds_up_as_tgi_does(
    engine: ScriptedEngine, tokenizer: Tokenizer, demo_model: Path
) -> None:
    engine.play(ENDLESS)
    settings = recorded_settings(max_input_tokens=4000, max_total_tokens=4096, strict=True)
    call = generate(create_app(settings, engine, tokenizer, demo_model), max_new_tokens=1500)
    await call.wait()
    assert len(call.events) == 2048


async def test_the_service_class_reaches_the_engine(app: ASGIApp, engine: ScriptedEngine) -> None:
    body = {"inputs": "Hi"}
    for headers in ({}, {"x-pageport-service-class": "batch"}, {"x-pageport-service-class": "Realtime"}):
        await AsgiCall(app, "POST", "/generate", body, **headers).wait()
    assert [request.service_class for request in engine.submitted] == [
        ServiceClass.REALTIME,
        ServiceClass.BATCH,
        ServiceClass.REALTIME,
    ]
    wrong = AsgiCall(app, "POST", "/generate", body, **{"x-pageport-service-class": "urgent"})
    await wrong.wait()
    assert wrong.status == 422
    assert "urgent" in json.loads(wrong.body)["error"]


class RefusingEngine(ScriptedEngine):
    """Refuses every request in a way of its own."""

    refusal: Exception = InvalidRequestError("grammar", "unclosed group in '('")

    async def submit(self, prompt: Any, sampling: SamplingParams, **options: Any) -> Any:
        if sampling.max_tokens is not None:
            raise self.refusal
        yield RequestOutput("never")


@pytest.mark.parametrize(
    ("refusal", "parameters", "status", "error_type"),
    [
        (
            InvalidRequestError("grammar", "unclosed"),
            {"grammar": {"type": "regex", "value": "("}},
            424,
            "generation",
        ),
        (InvalidRequestError("logit_bias", "token 9 is unknown"), {}, 422, "validation"),
        (EngineDeadError("killed twice"), {}, 424, "generation"),
    ],
)
async def test_what_the_engine_refuses(
    tokenizer: Tokenizer,
    demo_model: Path,
    refusal: Exception,
    parameters: dict[str, Any],
    status: int,
    error_type: str,
) -> None:
    engine = RefusingEngine(tokenizer)
    engine.refusal = refusal
    app = create_app(recorded_settings(), engine, tokenizer, demo_model)
    whole = generate(app, "/generate", **parameters)
    stream = generate(app, **parameters)
    await whole.wait()
    await stream.wait()
    assert whole.status == status
    assert json.loads(whole.body)["error_type"] == error_type
    assert (stream.status, [event["error_type"] for event in stream.events]) == (200, [error_type])
    assert str(refusal) in json.loads(whole.body)["error"]


async def test_health_after_a_failure_waits_for_a_token(app: ASGIApp, engine: ScriptedEngine) -> None:
    engine.play(Script(prefill_error="out of blocks"))
    await generate(app, "/generate").wait()
    before = len(engine.submitted)
    sick = AsgiCall(app, "GET", "/health")
    await sick.wait()
    engine.play(None)
    well, again = AsgiCall(app, "GET", "/health"), AsgiCall(app, "GET", "/health")
    await well.wait()
    await again.wait()
    assert (sick.status, well.status, again.status) == (503, 200, 200)
    probes = engine.submitted[before:]
    assert {(request.sampling.max_tokens, request.sampling.temperature) for request in probes} == {(1, 0.0)}


async def test_health_of_an_engine_that_is_away(app: ASGIApp, engine: ScriptedEngine) -> None:
    engine.play(Script(health_error="restarting"))
    call = AsgiCall(app, "GET", "/health")
    await call.wait()
    assert call.status == 503
    assert json.loads(call.body)["error_type"] == "healthcheck"
    assert engine.submitted == []
