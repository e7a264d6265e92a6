"""Recorded cases of several clients at once, each with the second at which it comes and where it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asgi_call import AsgiCall
from router_harness import recorded_settings
from scripted_engine import ScriptedEngine
from starlette.types import ASGIApp
from tokenizers import Tokenizer
from transcript import DATA, expanded, load_supersets, read_scripts, value_differences

from pageport.backends.tgi_adapter.router.app import create_app

# Nothing is learned from waiting 35 seconds here; see test_router_streams.py.
LEFT_OUT = "idle stream for 35 s: keep-alive lines"


def load_timelines() -> list[dict[str, Any]]:
    lines = map(json.loads, (DATA / "http-timelines.jsonl").read_text().splitlines())
    return [line for line in lines if line["name"] != LEFT_OUT]


def key_of(case: dict[str, Any]) -> str:
    return f"{case['file']} · {case['name']}"


async def test_all_at_once(tokenizer: Tokenizer, demo_model: Path) -> None:
    cases = load_timelines()
    supersets = load_supersets("http-timelines")
    answers = await asyncio.gather(*(replay(case, tokenizer, demo_model) for case in cases))
    problems, equal, superset = [], 0, set()
    for case, calls in zip(cases, answers, strict=True):
        found = list(differences(case, calls, recorded=key_of(case) not in supersets))
        problems += [f"{key_of(case)}: {problem}" for problem in found]
        if key_of(case) in supersets:
            superset.add(key_of(case))
        else:
            equal += 1
    assert not problems, "\n".join(problems)
    assert superset == set(supersets)
    print(f"http-timelines: {len(cases)} replayed, {equal} equal, {len(superset)} superset")


async def replay(case: dict[str, Any], tokenizer: Tokenizer, folder: Path) -> list[AsgiCall]:
    """The case's clients against a router of their own. No request is left in its engine."""
    engine = ScriptedEngine(tokenizer, step_s=case["step_s"])
    scripts = read_scripts(case)
    if len(scripts) == 1:
        engine.play(scripts[0])
    else:
        engine.play_in_turn(scripts)
    warmup = case["warmup"]
    settings = recorded_settings(
        tuple(case["flags"]), max_input_tokens=warmup["input"], max_total_tokens=warmup["total"]
    )
    app = create_app(settings, engine, tokenizer, folder)
    calls = await asyncio.gather(*(visit(app, expanded(client["request"])) for client in case["clients"]))
    assert engine.num_running == 0, key_of(case)
    return list(calls)


async def visit(app: ASGIApp, request: dict[str, Any]) -> AsgiCall:
    """One client, from its second to the end of its answer, or to where it leaves."""
    await asyncio.sleep(request["at"])
    if "get" in request:
        call = AsgiCall(app, "GET", request["get"])
    else:
        call = AsgiCall(app, "POST", request["path"], request["body"])
    if "abort_after" in request:
        await call.wait_events(request["abort_after"])
        await call.leave()
    await call.wait()
    return call


def differences(case: dict[str, Any], calls: list[AsgiCall], *, recorded: bool) -> Iterator[str]:
    """Clients that begin together have no order. Without `recorded` an answer may also be a complete one."""
    pending = list(calls)
    for client in case["clients"]:
        request, answer = client["request"], client["answer"]
        path = request.get("get", request.get("path"))
        candidates = [call for call in pending if call.path == path]
        found = [list(_answer_differences(request, answer, call)) for call in candidates]
        best = min(range(len(found)), key=lambda index: (len(found[index]), index))
        pending.remove(candidates[best])
        if found[best] and (recorded or not _complete(request, answer, candidates[best])):
            yield from found[best]


def _answer_differences(request: dict[str, Any], answer: dict[str, Any], call: AsgiCall) -> Iterator[str]:
    if call.status != answer["status"]:
        yield f"status {call.status}, recorded {answer['status']}"
    elif "events" in answer:
        events = [_short(event) for event in call.events]
        if "abort_after" in request:
            events = events[: request["abort_after"]]
        yield from value_differences(list(_whole(answer["events"], events)), events)
    elif "json" in answer:
        yield from value_differences(answer["json"], json.loads(call.body))


def _short(event: dict[str, Any]) -> Any:
    """As the recordings have it: id and text, and whether it is the last."""
    if "token" not in event:
        return event
    short = [event["token"]["id"], event["token"]["text"]]
    return short if event["generated_text"] is None else [*short, True]


def _whole(recorded: list[Any], events: list[Any]) -> Iterator[Any]:
    """What the recording left out in the middle is taken from the answer: only its number counts."""
    for index, event in enumerate(recorded):
        if isinstance(event, dict) and "_left_out" in event:
            yield from events[index : index + event["_left_out"]]
        else:
            yield event


def _complete(request: dict[str, Any], answer: dict[str, Any], call: AsgiCall) -> bool:
    """As many tokens as the client asked for (or as were recorded), and no error."""
    recorded = sum(
        event.get("_left_out", 0) if isinstance(event, dict) else 1 for event in answer.get("events", [])
    )
    count = request["body"].get("parameters", {}).get("max_new_tokens", recorded)
    if request["path"] == "/generate":
        return len(json.loads(call.body)["generated_text"].split()) == count
    return len(call.events) == count and call.events[-1]["generated_text"] is not None
