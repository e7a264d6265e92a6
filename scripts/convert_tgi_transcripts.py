"""Turns recordings of a real TGI router into the compact cases that the tests replay.

    python scripts/convert_tgi_transcripts.py RECORDINGS [tests/data/tgi]

RECORDINGS holds the `http-*.jsonl`, `rpc-*.jsonl`, `model-folders.jsonl` and `metrics.jsonl` files. What is kept of a
case: its request, what the scripted engine plays, status, headers, the structure of the answer with its values, and the
parameters and templated prompts that reached the engine. What is dropped: the wording of messages, and what differs
from run to run. See tests/data/tgi/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

PROSE = "<prose>"
VARIES = "<varies>"

# The same with every response; cases do not repeat them.
COMMON_HEADERS = {
    "vary": "origin, access-control-request-method, access-control-request-headers",
    "access-control-allow-origin": "*",
}
# Faults that were switched on by hand while a case ran: which request they hit.
FAULTS = {
    "prefill error of a second while a first runs": 1,
    "prefill fails, then the same prompt again": 0,
}
# Answers that are long descriptions of something else; only status and headers are kept.
DESCRIPTIONS = ("/api-doc/openapi.json", "/docs/", "/metrics")


def http_case(case: dict[str, Any]) -> dict[str, Any]:
    response = case["response"]
    kept = {
        key: case[key]
        for key in ("name", "router_flags", "environment", "script", "scripts")
        if case.get(key)
    }
    kept["request"] = _shortened(case["request"])
    kept["response"] = {
        "status": response["status"],
        "headers": _headers(case, response),
        **_body(case, response),
    }
    if reached := [_engine_request(request) for request in _prefilled(case.get("rpcs", []))]:
        kept["engine"] = reached
    return kept


def timeline_case(case: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any] | None:
    """The HTTP half of a case that was recorded for its RPCs."""
    clients = [client for client in case.get("clients", ()) if "request" in client]
    if not clients:
        return None
    kept = {key: case[key] for key in ("name", "script", "scripts") if case.get(key)}
    if case["name"] in FAULTS:
        scripts = [case["scripts"][0]] * len(clients)
        scripts[FAULTS[case["name"]]] = {"prefill_error": "out of blocks"}
        kept["scripts"] = scripts
    kept["flags"] = setting.get("router_flags", [])
    kept["warmup"] = setting.get("warmup_answer", {})
    kept["step_s"] = setting.get("shard_step_s", 0.0)
    kept["clients"] = [
        {"request": _shortened(client["request"]), "answer": _timeline_answer(client["answer"])}
        for client in clients
    ]
    return kept


def folder_cases(folder: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers of a router over one kind of model folder; those that it gave."""
    answers = [answer for answer in folder.get("answers", ()) if answer["response"]["status"]]
    return [
        {"folder": folder["name"], **http_case({**answer, "name": f"{folder['name']} · {answer['name']}"})}
        for answer in answers
    ]


def _timeline_answer(answer: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in answer.items() if key not in ("seconds", "at")}
    if "events" in kept:
        kept["events"] = [_event(event) for event in kept["events"]]
    if "json" in kept:
        kept["json"] = _without_prose(kept["json"])
    shortened: dict[str, Any] = _shortened(kept)
    return shortened


def _event(event: Any) -> Any:
    """Of `[id, text, whole text]` the whole text is dropped: the texts say it."""
    if isinstance(event, list) and len(event) == 3:
        return [*event[:2], True]
    return _without_prose(event)


def _headers(case: dict[str, Any], response: dict[str, Any]) -> dict[str, str]:
    headers = {name: value for name, value in response["headers"].items() if name != "date"}
    if not _exact_length(case, response):
        headers.pop("content-length", None)
    different = {name: value for name, value in COMMON_HEADERS.items() if headers.get(name) != value}
    kept = {name: value for name, value in headers.items() if COMMON_HEADERS.get(name) != value}
    return {**kept, **{name: headers.get(name, "") for name in different}}


def _exact_length(case: dict[str, Any], response: dict[str, Any]) -> bool:
    """Whether the body is the same in every run, so that its length says how numbers and keys are printed."""
    text = json.dumps(response.get("json"))
    varying = any(word in text for word in ('"created"', '"error"', '"seed"', '"sha"', '"openapi"'))
    seeds_are_fixed = '"seed": null' in text or "seed" in json.dumps(case["request"])
    return (response.get("text") == "" or "json" in response) and (
        not varying or ('"seed"' in text and seeds_are_fixed)
    )


def _body(case: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    if case["request"]["path"] in DESCRIPTIONS and response["status"] == 200:
        return {}
    if "events" in response:
        return {"events": [_without_prose(_stripped(event)) for event in response["events"]]}
    if "json" in response:
        return {"json": _without_prose(response["json"])}
    return {"text": PROSE if response["text"] else ""}


def _stripped(event: Any) -> Any:
    """`[DONE]` was recorded with the blank of the framing."""
    return event.strip() if isinstance(event, str) else event


def _without_prose(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: PROSE if key in ("error", "message") and isinstance(item, str) else _without_prose(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_without_prose(item) for item in value]
    return value


def _prefilled(rpcs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each request that reached the shard, once; not the probes of health checks."""
    for rpc in rpcs:
        if rpc.get("rpc") == "Prefill":
            for request in rpc["request"]["batch"].get("requests", ()):
                if request.get("id") != str(2**64 - 1):
                    yield request


def _engine_request(request: dict[str, Any]) -> dict[str, Any]:
    """Parameters as protobuf prints them: what is at its default is left out. A random seed is left out too."""
    names = ("truncate", "prefill_logprobs", "top_n_tokens", "add_special_tokens", "adapter_id")
    kept = {name: request[name] for name in names if name in request}
    parameters = dict(request["parameters"])
    grammar = parameters.pop("grammar", None)
    if grammar is not None:
        parameters["has_grammar"] = True
    parameters.pop("grammar_type", None)
    if not request.get("add_special_tokens"):
        kept["prompt"] = _cut(request["inputs"])
    return {**kept, "parameters": parameters, "stopping": request["stopping_parameters"]}


def _cut(text: Any) -> Any:
    """What was recorded of a prompt: all of it, or its two ends and its length."""
    if isinstance(text, str):
        return text
    return {"head": text["_head"], "tail": text["_tail"], "length": text["_str_len"]}


def _shortened(value: Any) -> Any:
    """Long strings that only repeat themselves become `{"prefix", "unit", "times", "suffix"}`."""
    if isinstance(value, list):
        return [_shortened(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "_str_len" in value:
        return _repetition(value)
    return {key: _shortened(item) for key, item in value.items()}


def _repetition(cut: dict[str, Any]) -> dict[str, Any]:
    head, tail, length = cut["_head"], cut["_tail"], cut["_str_len"]
    for prefix in ("", '{"inputs":"'):
        suffix = '"}' if prefix else ""
        for size in range(1, 12):
            unit = head[len(prefix) : len(prefix) + size]
            times, rest = divmod(length - len(prefix) - len(suffix), size)
            whole = prefix + unit * times + suffix
            if rest == 0 and whole.startswith(head) and whole.endswith(tail):
                return {"prefix": prefix, "unit": unit, "times": times, "suffix": suffix}
    raise ValueError(f"not a repetition: {head!r} … {tail!r}")


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    settings = [line["setting"] for line in lines if isinstance(line.get("setting"), dict)]
    setting = settings[0] if settings else {}
    return setting, [line for line in lines if "setting" not in line]


def _write(path: Path, cases: list[dict[str, Any]]) -> None:
    path.write_text(
        "".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n" for case in cases)
    )
    print(f"{path.name}: {len(cases)} cases, {path.stat().st_size / 1024:.0f} KiB")


@click.command()
@click.argument("recordings", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", type=click.Path(file_okay=False, path_type=Path), default=Path("tests/data/tgi"))
def main(recordings: Path, target: Path) -> None:
    for path in sorted(recordings.glob("http-*.jsonl")):
        _, cases = _read(path)
        _write(target / path.name, [http_case(case) for case in cases])
    _, folders = _read(recordings / "model-folders.jsonl")
    _write(target / "model-folders.jsonl", [case for folder in folders for case in folder_cases(folder)])
    timelines = []
    for path in sorted(recordings.glob("rpc-*.jsonl")):
        setting, cases = _read(path)
        for case in cases:
            if (kept := timeline_case(case, setting)) is not None:
                timelines.append({"file": path.stem, **kept})
    _write(target / "http-timelines.jsonl", timelines)
    metrics = json.loads((recordings / "metrics.jsonl").read_text())
    _write(target / "metrics.jsonl", [{key: metrics[key] for key in ("types", "labels", "buckets")}])


if __name__ == "__main__":
    main()
