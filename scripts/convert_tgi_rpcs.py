"""Makes tests/data/tgi/rpc/*.jsonl from recordings of TGI's routers over a scripted shard.

    python scripts/convert_tgi_rpcs.py RECORDINGS [tests/data/tgi/rpc]

The first line of a file is the setting of all its cases, which ran one after the other on one router. Kept of a case:
its clients, what the shard played, the calls in their order with everything that does not vary, and what each request
was given in all. Dropped: times of calls, seeds, the wording of messages, the middle of long lists.

Some clients are missing in the recordings (their connection was cut by hand). They are put back from the calls that
were made for them: one comes when the call before its first has ended at the latest, and leaves in the middle of the
last call that has it. A request number without any call is a client that left while it waited.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = (
    "rpc-chunking", "rpc-chunking-shard-prunes", "rpc-no-chunking", "rpc-chunked-prefill", "rpc-chunked-prefill-prefix",
    "rpc-padding", "rpc-prefix-caching-16", "rpc-prefix-hazard", "rpc-prefix-hazard-chunking", "rpc-small-pool",
    "rpc-window", "rpc-misc", "rpc-long-answers", "rpc-overload", "v2",
)  # fmt: skip
LIVENESS_ID = 2**64 - 1
_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0}
_GRAMMAR_TYPES = {"GRAMMAR_TYPE_JSON": 1, "GRAMMAR_TYPE_REGEX": 2}
_ROUND = 1024
_REPEATED = re.compile(r"( ?[a-z]+?)\1{3,}")


@dataclass
class Session:
    """Where the router's counters stand before the next case; None: the recording does not say."""

    next_request: int | None = 0
    next_batch: int | None = 0


@dataclass
class Request:
    """A request that the router numbered, as its calls show it; the seconds are of the ends of calls."""

    id: int
    batch: int
    prompt: Any
    new: int
    queued_until: float
    first_call: float
    last_call: float
    asked_for: dict[str, Any]


def number(value: Any) -> int:
    return int(value or 0)


def compact(text: Any) -> Any:
    """A text; one that is a word many times as [word, times]. Of a cut one the recording has beginning and length."""
    cut = isinstance(text, dict)
    head = text["_head"] if cut else text
    length = text["_str_len"] if cut else len(text)
    match = _REPEATED.match(head)
    if match is not None and (cut or match.end() == length) and length % len(match[1]) == 0:
        return [match[1], length // len(match[1])]
    if cut:
        raise ValueError(f"cannot be completed: {head!r}")
    return text


def ends(values: Any) -> list[int] | None:
    """A list's length, its first and its last item; None for an empty one."""
    if not values:
        return None
    if isinstance(values, dict):
        return [values["_list_len"], values["_head"][0], values["_tail"][-1]]
    return [len(values), values[0], values[-1]]


def request(entry: dict[str, Any]) -> dict[str, Any]:
    """A `Request`, without what is as always."""
    stopping = entry["stopping_parameters"]
    kept = {
        "prompt": compact(entry["inputs"]),
        "new": stopping["max_new_tokens"],
        "truncate": entry["truncate"],
        **asked_for(entry),
        "blocks": ends(entry.get("blocks")),
        "slots": ends(entry.get("slots")),
        "cache_len": entry.get("cache_len"),
        "chunk_len": entry.get("chunk_len"),
    }
    return {"id": number(entry.get("id")), **without_nothing(kept)}


def asked_for(entry: dict[str, Any]) -> dict[str, Any]:
    """What is the client's choice, beside prompt and length."""
    parameters = {key: value for key, value in entry["parameters"].items() if key != "seed"}
    if "grammar_type" in parameters:
        parameters["grammar_type"] = _GRAMMAR_TYPES[parameters["grammar_type"]]
    return without_nothing(
        {
            "special": entry.get("add_special_tokens"),
            "parameters": {key: value for key, value in parameters.items() if _NEUTRAL.get(key) != value},
            "prefill_logprobs": entry.get("prefill_logprobs"),
        }
    )


def without_nothing(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != {}}


def call(rpc: dict[str, Any]) -> list[Any]:
    """One call: its name, what was asked, and whether it failed. A number alone: so many calls are left out here."""
    if "rpc" not in rpc:
        return [rpc["_left_out"]]
    name, asked = rpc["rpc"].removeprefix("v2:"), rpc["request"]
    failed = "error" in rpc
    if name == "Prefill":
        batch = asked["batch"]
        about = {key: batch[key] for key in ("size", "max_tokens", "max_blocks") if key in batch}
        if "cached_batch" in asked:
            about["cached"] = number(asked["cached_batch"].get("id"))
        return [name, number(batch.get("id")), about, [request(entry) for entry in batch["requests"]], failed]
    if name == "Decode":
        named = [[number(each.get("id")), [*map(number, each["request_ids"])]] for each in asked["batches"]]
        return [name, named, failed]
    if name == "FilterBatch":
        return [name, number(asked.get("batch_id")), [*map(number, asked["request_ids"])]]
    if name == "ClearCache":
        return [name, number(asked.get("id"))]
    return [name]


def given(rpcs: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By request: all tokens and texts that it was given, and its text at the end."""
    requests: dict[int, dict[str, Any]] = {}
    for rpc in rpcs:
        response = rpc.get("response")
        for generation in response.get("generations", []) if isinstance(response, dict) else []:
            request_id = number(generation.get("request_id"))
            if request_id == LIVENESS_ID:
                continue
            one = requests.setdefault(request_id, {"ids": [], "texts": [], "end": None})
            for name in ("ids", "texts"):
                one[name] += generation["tokens"].get(name, [])
            end = generation.get("generated_text")
            if end is not None:
                one["end"] = [end.get("text", ""), end["generated_tokens"], end.get("finish_reason", 0)]
    return requests


def requests_of(rpcs: list[dict[str, Any]]) -> list[Request]:
    """All requests of a case, by number."""
    found: dict[int, Request] = {}
    before = 0.0
    for rpc in rpcs:
        if "rpc" not in rpc or rpc["rpc"].removeprefix("v2:") not in ("Prefill", "Decode"):
            continue
        asked = rpc["request"]
        for entry in asked.get("batch", {}).get("requests", []):
            request_id = number(entry.get("id"))
            if request_id != LIVENESS_ID:
                new = entry["stopping_parameters"]["max_new_tokens"]
                batch = number(asked["batch"].get("id"))
                prompt = compact(entry["inputs"])
                found[request_id] = Request(
                    request_id, batch, prompt, new, before, rpc["t"], rpc["t"], asked_for(entry)
                )
        named = [*asked.get("batches", ()), *([asked["cached_batch"]] if "cached_batch" in asked else ())]
        for request_id in (number(each) for batch in named for each in batch["request_ids"]):
            if request_id in found:  # else its first call is left out
                found[request_id].last_call = rpc["t"]
        before = rpc["t"]
    return [found[key] for key in sorted(found)]


def asked_by(client: dict[str, Any]) -> Iterator[tuple[Any, int | None]]:
    """Prompt and number of new tokens of each request that a client's call becomes; a chat's prompt is None."""
    body = client["body"]
    if "messages" in body:
        yield None, body.get("max_tokens")
    elif "prompt" in body:
        for prompt in body["prompt"]:
            yield compact(prompt), body.get("max_tokens")
    else:
        parameters = body.get("parameters") or {}
        for _ in range(parameters.get("best_of", 1)):
            yield compact(body["inputs"]), parameters.get("max_new_tokens")


def clients_of(case: dict[str, Any], step_s: float, session: Session) -> list[dict[str, Any]]:
    """The clients in the order in which the router numbered their requests."""
    unclaimed = {one.id: one for one in requests_of(case["rpcs"])}
    clients: list[tuple[float, dict[str, Any]]] = []
    for entry in case["clients"]:
        client = entry.get("request", {})
        if "get" in client:
            clients.append((math.inf, {"at": client["at"], "health": True}))
        if "body" not in client:
            continue
        for prompt, new in asked_by(client):
            match = next(
                (
                    one
                    for one in unclaimed.values()
                    if one.first_call > client["at"] and is_for(one, prompt, new)
                ),
                None,
            )
            if match is not None:
                del unclaimed[match.id]
                prompt = match.prompt
            elif not has_gap(case):
                continue  # the router refused it
            asked = match.asked_for if match else {"special": True}
            kept = {"at": client["at"], "prompt": prompt, "new": new, **asked}
            if client.get("abort_after") is not None:
                kept["leave_after"] = client["abort_after"]
            clients.append((match.id if match else math.inf, kept))
    for one in unclaimed.values():
        at = round(max(0.0, one.queued_until - step_s / 2), 3)
        leave_at = round(one.last_call - step_s / 2, 3)
        kept = {"at": at, "prompt": one.prompt, "new": one.new, **one.asked_for, "leave_at": leave_at}
        clients.append((one.id, kept))
    clients.sort(key=lambda client: (client[1]["at"], client[0]))
    return [*left_in_the_queue(case, session), *(client for _, client in clients)]


def has_gap(case: dict[str, Any]) -> bool:
    """Whether the middle of the calls is left out."""
    return any("rpc" not in rpc for rpc in case["rpcs"])


def is_for(one: Request, prompt: Any, new: int | None) -> bool:
    if prompt is None:
        return isinstance(one.prompt, str) and one.prompt.startswith("<|im_start|>")
    return bool(one.prompt == prompt) and (new is None or one.new == min(new, _ROUND))


def left_in_the_queue(case: dict[str, Any], session: Session) -> list[dict[str, Any]]:
    """Clients whose requests were numbered and never called for; moves the session on to after this case."""
    found = requests_of(case["rpcs"])
    gone: list[dict[str, Any]] = []
    if found and session.next_request is not None and found[0].batch == session.next_batch:
        missing = found[0].id - session.next_request
        gone = [{"at": 0, "prompt": "Gone", "new": 1, "leave_after": 0} for _ in range(missing)]
    if has_gap(case):
        session.next_request = session.next_batch = None
    elif found:
        session.next_request = found[-1].id + 1
        session.next_batch = max(one.batch for one in found) + 1
    return gone


def convert(case: dict[str, Any], step_s: float, session: Session) -> dict[str, Any]:
    before = (session.next_request, session.next_batch)
    clients = clients_of(case, step_s, session)
    found = requests_of(case["rpcs"])
    kept: dict[str, Any] = {"name": case["name"]}
    if found and None not in before and found[0].batch != before[1]:
        kept["first"] = [found[0].id, found[0].batch]  # the router did something in between
    kept["scripts"] = case.get("scripts") or [case.get("script")]
    kept["clients"] = clients
    kept["calls"] = [call(rpc) for rpc in case["rpcs"]]
    if not has_gap(case):
        kept["given"] = given(case["rpcs"])
    return kept


def setting_of(recorded: dict[str, Any]) -> dict[str, Any]:
    return {
        "v2": recorded["router"] == "v2",
        "flags": recorded.get("router_flags", []),
        "environment": recorded.get("environment", {}),
        "info": {key: value for key, value in recorded["shard_info"].items() if value},
        "answer": recorded.get("warmup_answer", {"supported": 16384, "input": 1023, "total": 1024}),
        "prune": recorded.get("prune", False),
        "step_s": recorded["shard_step_s"],
    }


def start_up(case: dict[str, Any]) -> dict[str, Any]:
    """How one router started, or did not."""
    kept = {
        "name": case["name"],
        "v2": case.get("router") == "v2",
        "flags": case["router_flags"],
        "info": {key: value for key, value in case["shard_info"].items() if value},
        "answer": case["warmup_answer"],
        "exit": case["exit_code"],
        "calls": [rpc["rpc"].removeprefix("v2:") for rpc in case["rpcs"]],
    }
    if case["name"].startswith("v2 ATTENTION "):
        kept["environment"] = {"ATTENTION": case["name"].removeprefix("v2 ATTENTION ")}
    for rpc in case["rpcs"]:
        if rpc["rpc"].endswith("Warmup"):
            asked = rpc["request"]
            kept["warmup"] = {
                **{key: value for key, value in asked.items() if key != "batch"},
                **{key: value for key, value in asked["batch"].items() if key != "requests"},
                "requests": [
                    [entry["truncate"], entry["stopping_parameters"]["max_new_tokens"]]
                    for entry in asked["batch"]["requests"]
                ],
            }
    if case.get("info"):
        kept["limits"] = [case["info"]["max_input_tokens"], case["info"]["max_total_tokens"]]
    return kept


def main(recordings: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[dict[str, Any]]] = {"start-up": []}
    for name in (*FILES, "startup"):
        lines: list[dict[str, Any]] = []
        session, step_s = Session(), 0.0
        for line in (recordings / f"{name}.jsonl").read_text("utf-8").splitlines():
            case = json.loads(line)
            if "came_up" in case:
                files["start-up"].append(start_up(case))
            elif "setting" in case:
                setting = setting_of(case["setting"])
                session, step_s = Session(), setting["step_s"]
                padded = "-padding" if name == "v2" and setting["info"].get("requires_padding") else ""
                lines = files[name.removeprefix("rpc-") + padded] = [{"setting": setting}]
            elif case.get("rpcs"):
                lines.append(convert(case, step_s, session))
    for name, written in files.items():
        text = "\n".join(json.dumps(line, separators=(",", ":")) for line in written)
        (target / f"{name}.jsonl").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("tests/data/tgi/rpc"))
