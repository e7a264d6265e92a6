"""Recorded HTTP cases of the real TGI router: reading them, replaying them, and saying where an answer differs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from scripted_engine import Script, ScriptedEngine, Submitted

DATA = Path(__file__).parents[2] / "data" / "tgi"
PROSE = "<prose>"
VARIES = "<varies>"
COMMON_HEADERS = {
    "vary": "origin, access-control-request-method, access-control-request-headers",
    "access-control-allow-origin": "*",
}
_CONNECTION_HEADERS = frozenset({"date", "connection", "transfer-encoding"})
# Keys whose values differ from run to run (`created`), or say what TGI's own build was (`sha`).
_VARYING_KEYS = frozenset({"created", "sha"})


@dataclass(frozen=True)
class Case:
    """One recorded request and its answer.

    Attributes:
        flags: of the router, as on its command line.
        scripts: what the engine plays, by order of arrival; one plays for all.
        engine: parameters of each request that reached the engine; None: not recorded.
        folder: the kind of model folder; empty: the demo model's own.
    """

    file: str
    name: str
    request: dict[str, Any]
    response: dict[str, Any]
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    scripts: tuple[Script, ...] = ()
    engine: list[dict[str, Any]] | None = None
    folder: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """All recorded headers; an empty value means that there was none of this name."""
        headers = {**COMMON_HEADERS, **self.response["headers"]}
        return {name: value for name, value in headers.items() if value}


@dataclass(frozen=True)
class Superset:
    """A case that TGI refuses and this router answers.

    Attributes:
        why: for the documentation.
        status: of the answer here.
    """

    why: str
    status: int = 200


@dataclass(frozen=True)
class Reply:
    """An answer to a replayed request, and what reached the engine for it."""

    status: int
    headers: dict[str, str]
    body: bytes
    submitted: list[Submitted]


def load_cases(file: str) -> list[Case]:
    """Of `tests/data/tgi/<file>.jsonl`, in the order in which they were recorded."""
    lines = map(json.loads, (DATA / f"{file}.jsonl").read_text().splitlines())
    return [
        Case(
            file,
            line["name"],
            expanded(line["request"]),
            line["response"],
            tuple(line.get("router_flags", ())),
            line.get("environment", {}),
            read_scripts(line),
            line.get("engine"),
            line.get("folder", ""),
        )
        for line in lines
    ]


def load_supersets(file: str) -> dict[str, Superset]:
    """By the name of the case."""
    table = json.loads((DATA / "supersets.json").read_text())
    return {name: Superset(**entry) for name, entry in table.get(file, {}).items()}


def read_scripts(line: dict[str, Any]) -> tuple[Script, ...]:
    scripts = line.get("scripts") or ([line["script"]] if line.get("script") else [])
    return tuple(map(Script.parse, scripts))


def expanded(value: Any) -> Any:
    """Repetitions as the long strings that they stand for."""
    if isinstance(value, list):
        return [expanded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"prefix", "unit", "times", "suffix"}:
        return f"{value['prefix']}{value['unit'] * value['times']}{value['suffix']}"
    return {key: expanded(item) for key, item in value.items()}


async def replay(case: Case, client: httpx.AsyncClient, engine: ScriptedEngine) -> Reply:
    """Send the case's request while the engine plays the case's script."""
    before = len(engine.submitted)
    one_for_all = case.scripts[0] if len(case.scripts) == 1 else None
    if one_for_all is None:
        engine.play_in_turn(case.scripts)
    with engine.playing(one_for_all):
        response = await client.request(
            case.request["method"],
            case.request["path"],
            headers=case.request.get("headers"),
            **_content(case.request),
        )
    submitted = [request for request in engine.submitted[before:] if request.sampling.token_texts]
    return Reply(response.status_code, dict(response.headers), response.content, submitted)


def _content(request: dict[str, Any]) -> dict[str, Any]:
    if "json" in request:
        return {"json": request["json"]}
    if "raw" not in request:
        return {}
    raw: str = request["raw"]
    return {"content": raw.encode("latin-1" if all(ord(letter) < 256 for letter in raw) else "utf-8")}


# -- comparison ------------------------------------------------------------------------------------------------


def differences(case: Case, reply: Reply) -> list[str]:
    """Where the reply is not what was recorded; empty: nowhere."""
    if reply.status != case.response["status"]:
        return [f"status {reply.status}, recorded {case.response['status']}: {reply.body[:300]!r}"]
    return [
        *_header_differences(case.headers, reply.headers),
        *_body_differences(case, reply),
        *engine_differences(case, reply.submitted),
    ]


def _header_differences(expected: dict[str, str], actual: dict[str, str]) -> Iterator[str]:
    actual = {name: value for name, value in actual.items() if name not in _CONNECTION_HEADERS}
    if "content-length" not in expected:
        actual.pop("content-length", None)
    for name in sorted(expected.keys() | actual.keys() - _CONNECTION_HEADERS):
        wanted, given = expected.get(name), actual.get(name)
        if name not in _CONNECTION_HEADERS and given != wanted and (wanted != VARIES or given is None):
            yield f"header {name}: {given!r}, recorded {wanted!r}"


def _body_differences(case: Case, reply: Reply) -> Iterator[str]:
    response = case.response
    random_seed = '"seed"' not in json.dumps(case.request)
    if "events" in response:
        yield from value_differences(response["events"], read_events(reply.body), random_seed=random_seed)
    elif "json" in response:
        yield from value_differences(response["json"], json.loads(reply.body), random_seed=random_seed)
    elif "text" in response:
        text = reply.body.decode()
        if bool(text) != bool(response["text"]):
            yield f"text {text!r}, recorded {response['text']!r}"


def read_events(body: bytes) -> list[Any]:
    """The events of a stream; `[DONE]` as that string. Any other framing than TGI's is an error."""
    events: list[Any] = []
    *frames, rest = body.decode().split("\n\n")
    assert rest == "", f"the stream ends within an event: {rest!r}"
    for event in frames:
        if event == ":":
            continue
        assert event.startswith("data: "), f"not an event: {event!r}"
        data = event.removeprefix("data: ")
        events.append(data if data == "[DONE]" else json.loads(data))
    return events


def value_differences(
    expected: Any, actual: Any, path: str = "", *, random_seed: bool = True
) -> Iterator[str]:
    """Of two decoded bodies; the order of keys counts."""
    key = path.rpartition(".")[2]
    if expected == PROSE:
        if not isinstance(actual, str) or not actual:
            yield f"{path}: {actual!r}, recorded a message"
    elif isinstance(expected, dict) and isinstance(actual, dict):
        if list(expected) != list(actual):
            yield f"{path}: keys {list(actual)}, recorded {list(expected)}"
        for name in expected.keys() & actual.keys():
            yield from value_differences(
                expected[name], actual[name], f"{path}.{name}", random_seed=random_seed
            )
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{path}: {len(actual)} entries, recorded {len(expected)}"
        for index, (wanted, given) in enumerate(zip(expected, actual, strict=False)):
            yield from value_differences(wanted, given, f"{path}[{index}]", random_seed=random_seed)
    elif key in _VARYING_KEYS or (key == "seed" and random_seed and isinstance(expected, int)):
        if key == "seed" and not isinstance(actual, int):
            yield f"{path}: {actual!r}, recorded a number"
    elif type(expected) is not type(actual) or expected != actual:
        yield f"{path}: {actual!r}, recorded {expected!r}"


def engine_differences(case: Case, submitted: list[Submitted]) -> Iterator[str]:
    """Between the parameters that reached TGI's shard and those that reached the engine."""
    recorded = case.engine or []
    if case.engine is None and case.response["status"] == 200:
        return
    if len(recorded) != len(submitted):
        yield f"engine: {len(submitted)} requests, recorded {len(recorded)}"
    seed_given = '"seed"' in json.dumps(case.request)
    for number, (wanted, request) in enumerate(zip(recorded, submitted, strict=False)):
        if "prompt" in wanted and not _is_prompt(wanted["prompt"], request.prompt):
            yield f"engine request {number}: prompt {request.prompt!r}, recorded {wanted['prompt']!r}"
    for number, (wanted, request) in enumerate(zip(recorded, submitted, strict=False)):
        for name, (value, given) in _engine_values(wanted, request, seed_given=seed_given).items():
            if value != given and not (isinstance(value, float) and math.isclose(value, given, rel_tol=1e-6)):
                yield f"engine request {number}: {name} {given!r}, recorded {value!r}"


def _is_prompt(recorded: str | dict[str, Any], text: str) -> bool:
    if isinstance(recorded, str):
        return text == recorded
    return (
        text.startswith(recorded["head"])
        and text.endswith(recorded["tail"])
        and len(text) == recorded["length"]
    )


def _engine_values(
    wanted: dict[str, Any], request: Submitted, *, seed_given: bool
) -> dict[str, tuple[Any, Any]]:
    """Name to recorded and real value. Protobuf leaves out what is zero."""
    sampling = request.sampling
    parameters = {name: value for name, value in wanted["parameters"].items() if value != "NaN"}
    temperature = float(parameters.get("temperature", 0.0))
    top_k, top_p = parameters.get("top_k", 0), float(parameters.get("top_p", 0.0))
    typical_p = float(parameters.get("typical_p", 0.0))
    sampled = (
        parameters.get("do_sample", False)
        or (temperature, top_k) != (1.0, 0)
        or top_p < 1.0
        or typical_p < 1.0
    )
    stops = wanted["stopping"].get("stop_sequences", [])
    max_new_tokens = 1 if "" in stops else wanted["stopping"]["max_new_tokens"]
    values: dict[str, tuple[Any, Any]] = {
        "temperature": (temperature if sampled else 0.0, sampling.temperature),
        "top_k": (top_k, sampling.top_k),
        "top_p": (top_p, sampling.top_p),
        "typical_p": (typical_p, sampling.typical_p),
        "repetition_penalty": (float(parameters.get("repetition_penalty", 0.0)), sampling.repetition_penalty),
        "frequency_penalty": (float(parameters.get("frequency_penalty", 0.0)), sampling.frequency_penalty),
        "watermark": (parameters.get("watermark", False), sampling.watermark is not None),
        "grammar": (parameters.get("has_grammar", False), sampling.grammar is not None),
        "max_new_tokens": (max_new_tokens, sampling.max_tokens),
        "stop_sequences": ([stop for stop in stops if stop], list(sampling.stop)),
        "top_n_tokens": (wanted.get("top_n_tokens", 0), sampling.logprobs or 0),
        "prefill_logprobs": (wanted.get("prefill_logprobs", False), sampling.prompt_logprobs is not None),
    }
    if seed_given:
        values["seed"] = (int(parameters.get("seed", 0)), sampling.seed)
    return values


def unexpected(reports: Iterable[tuple[Case, list[str]]]) -> str:
    """A readable list of all cases with differences."""
    return "\n".join(
        f"{case.file} · {case.name}\n    " + "\n    ".join(found) for case, found in reports if found
    )
