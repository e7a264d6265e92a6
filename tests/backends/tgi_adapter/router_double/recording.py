"""The recorded calls of TGI's routers: what tests/data/tgi/rpc holds, and calls in the same form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from scripted_engine import Script
from waiting_line import Client

DATA = Path(__file__).parents[3] / "data" / "tgi" / "rpc"
START_UPS = "start-up"

# Name, then what was asked, then whether it failed: ["Prefill", batch, {...}, [request, ...], failed],
# ["Decode", [[batch, [request, ...]], ...], failed], ["FilterBatch", batch, [request, ...]], ["ClearCache", batch].
# [number] stands for so many calls that the recording leaves out.
Call: TypeAlias = list[Any]

LIVENESS_BATCH = 2**64 - 1

_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class Visitor:
    """One recorded client.

    Attributes:
        at: seconds at which it comes.
        leave_at: seconds at which it closes its connection.
        client: what it asks for; None: `GET /health`.
    """

    at: float
    client: Client | None
    leave_at: float | None = None


@dataclass(frozen=True)
class Case:
    """
    Attributes:
        first: the numbers of its first request and batch, where the router did something unrecorded before.
        given: by request, what it was given in all; empty where the recording leaves out calls.
    """

    name: str
    scripts: list[Script]
    visitors: list[Visitor]
    calls: list[Call]
    given: dict[int, dict[str, Any]]
    first: tuple[int, int] | None

    @property
    def failing_prefills(self) -> frozenset[int]:
        """By number."""
        return frozenset(number for number, call in enumerate(self._prefills) if call[-1])

    @property
    def shard_scripts(self) -> list[Script]:
        """By order of arrival, the last one for all that follow; with the faults that were switched on by hand."""
        scripts = list(self.scripts)
        arrivals = itertools.accumulate((len(call[3]) for call in self._prefills), initial=0)
        for arrival, call in zip(arrivals, self._prefills, strict=False):
            if call[-1]:
                scripts += [scripts[-1]] * (arrival + 2 - len(scripts))
                scripts[arrival] = replace(scripts[arrival], prefill_error="out of blocks")
        return scripts

    @property
    def _prefills(self) -> list[Call]:
        return [call for call in self.calls if call[0] == "Prefill" and call[1] != LIVENESS_BATCH]


@dataclass(frozen=True)
class Session:
    """The cases of one file: one router after the other's case."""

    setting: dict[str, Any]
    cases: list[Case]


def session_names() -> list[str]:
    return sorted(path.stem for path in DATA.glob("*.jsonl") if path.stem != START_UPS)


@cache
def load_session(name: str) -> Session:
    setting, *cases = read_lines(name)
    return Session(setting["setting"], [_case(case) for case in cases])


def read_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]


def _case(values: dict[str, Any]) -> Case:
    first = values.get("first")
    return Case(
        name=values["name"],
        scripts=[Script.parse(script) for script in values["scripts"]],
        visitors=[_visitor(client) for client in values["clients"]],
        calls=values["calls"],
        given={int(key): value for key, value in values.get("given", {}).items()},
        first=None if first is None else (first[0], first[1]),
    )


def _visitor(values: dict[str, Any]) -> Visitor:
    if values.get("health"):
        return Visitor(values["at"], None)
    client = Client(
        prompt=whole(values["prompt"]),
        new=values["new"],
        leave_after=values.get("leave_after"),
        parameters=values.get("parameters", {}),
        special=values.get("special", False),
        prefill_logprobs=values.get("prefill_logprobs", False),
    )
    return Visitor(values["at"], client, values.get("leave_at"))


def whole(text: str | Sequence[Any]) -> str:
    """A text, which may be kept as a word and how often it comes."""
    return text if isinstance(text, str) else text[0] * text[1]


def compact(text: str) -> str | list[Any]:
    """The same the other way round: [word, times] where a word of letters comes at least four times and fills it."""
    for length in range(1, len(text) // 4 + 1):
        word = text[:length]
        if word.strip(" ").isalpha() and word * (len(text) // length) == text:
            return [word, len(text) // length]
    return text


def written(name: str, request: Any, *, failed: bool = False) -> Call:
    """A call in the form of the recordings."""
    if name == "Prefill":
        batch = request.batch
        about = {
            key: value for key in ("size", "max_tokens", "max_blocks") if (value := getattr(batch, key, 0))
        }
        if "cached_batch" in request.DESCRIPTOR.fields_by_name and request.HasField("cached_batch"):
            about["cached"] = request.cached_batch.id
        return [name, batch.id, about, [_request(item) for item in batch.requests], failed]
    if name == "Decode":
        return [name, [[batch.id, list(batch.request_ids)] for batch in request.batches], failed]
    if name == "FilterBatch":
        return [name, request.batch_id, list(request.request_ids)]
    return [name, request.id]


def _request(request: Any) -> dict[str, Any]:
    parameters = {
        field.name: value for field, value in request.parameters.ListFields() if field.name != "seed"
    }
    kept = {
        "prompt": compact(request.inputs),
        "new": request.stopping_parameters.max_new_tokens,
        "truncate": request.truncate,
        "special": getattr(request, "add_special_tokens", False),
        "parameters": {key: value for key, value in parameters.items() if _NEUTRAL.get(key) != value},
        "prefill_logprobs": request.prefill_logprobs,
        "blocks": _ends(getattr(request, "blocks", ())),
        "slots": _ends(getattr(request, "slots", ())),
        "cache_len": getattr(request, "cache_len", 0),
        "chunk_len": getattr(request, "chunk_len", 0),
    }
    return {"id": request.id, **{key: value for key, value in kept.items() if value}}


def _ends(values: Sequence[int]) -> list[int]:
    return [len(values), values[0], values[-1]] if values else []


def without_gap(calls: Sequence[Call], recorded: Sequence[Call]) -> Iterator[Call]:
    """The calls without those that stand where a recording leaves some out."""
    gap = next((place for place, call in enumerate(recorded) if isinstance(call[0], int)), None)
    if gap is None:
        yield from calls
        return
    left_out = recorded[gap][0]
    yield from itertools.islice(calls, gap)
    yield [min(left_out, max(0, len(calls) - gap))]
    yield from itertools.islice(calls, gap + left_out, None)
