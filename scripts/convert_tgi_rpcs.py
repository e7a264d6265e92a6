"""Makes tests/data/tgi/rpc/*.jsonl from recordings of TGI's router over a scripted shard.

    python scripts/convert_tgi_rpcs.py RECORDINGS [tests/data/tgi/rpc]

Kept of a case: its clients, what the shard played, the order of the calls with the numbers that decide it, and what a
request was given in all. Dropped: times of calls, blocks and slots, the wording of messages.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILES = (
    "rpc-chunking", "rpc-chunking-shard-prunes", "rpc-no-chunking", "rpc-chunked-prefill", "rpc-chunked-prefill-prefix",
    "rpc-padding", "rpc-prefix-caching-16", "rpc-prefix-hazard", "rpc-prefix-hazard-chunking", "rpc-small-pool",
    "rpc-window", "rpc-misc",
)  # fmt: skip


def whole(text: Any) -> str:
    """A text; of a long one, which is one word many times, as many words as it had characters for."""
    if isinstance(text, str):
        return text
    head = text["_head"]
    words = head.split()
    word = f" {words[-2]}" if len(words) > 1 else head
    prefix = head[: len(head) - len(head.lstrip())].replace(" ", "", 1) if head.startswith("  ") else ""
    return prefix + word * round(text["_str_len"] / len(word))


def number(value: Any) -> int:
    return int(value or 0)


def call(rpc: dict[str, Any]) -> list[Any] | None:
    """One call: its name, and what decides what happens next. None for those that come beside the loop."""
    name, request = rpc["rpc"].removeprefix("v2:"), rpc["request"]
    failed = "error" in rpc
    if name == "Prefill":
        batch = request["batch"]
        requests = [[number(item.get("id")), item.get("chunk_len")] for item in batch["requests"]]
        if requests[0][0] == 2**64 - 1:
            return None
        cached = request.get("cached_batch")
        return [
            name, number(batch.get("id")), requests, number(batch.get("max_tokens")),
            None if cached is None else number(cached.get("id")), failed,
        ]  # fmt: skip
    if name == "Decode":
        batches = [
            [number(batch.get("id")), [number(item) for item in batch.get("request_ids", [])]]
            for batch in request["batches"]
        ]
        return [name, batches, failed]
    if name == "FilterBatch":
        return [
            name,
            number(request.get("batch_id")),
            [number(item) for item in request.get("request_ids", [])],
        ]
    if name == "ClearCache":
        return [name, number(request.get("id"))]
    return None


def given(rpcs: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """By request: all tokens, texts and log-probabilities that it was given, and its text at the end."""
    requests: dict[int, dict[str, Any]] = {}
    for rpc in rpcs:
        response = rpc.get("response")
        for generation in response.get("generations", []) if isinstance(response, dict) else []:
            request_id = number(generation.get("request_id"))
            if request_id == 2**64 - 1:
                continue
            one = requests.setdefault(request_id, {"ids": [], "texts": [], "logprobs": [], "end": None})
            for name in ("ids", "texts", "logprobs"):
                one[name] += generation.get("tokens", {}).get(name, [])
            end = generation.get("generated_text")
            if end is not None:
                one["end"] = [end.get("text", ""), end.get("generated_tokens"), end.get("finish_reason", 0)]
    return requests


def client(entry: dict[str, Any]) -> dict[str, Any]:
    request = entry["request"]
    body = request.get("body") or {}
    parameters = body.get("parameters") or {}
    return {
        "at": request["at"],
        "path": request.get("path", ""),
        "prompt": whole(body.get("inputs", "")),
        "parameters": parameters,
        "leave_after": request.get("abort_after"),
        "leave_at": request.get("abort_at"),
    }


def convert(case: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any]:
    rpcs = case["rpcs"]
    calls = [made for made in (call(rpc) for rpc in rpcs if "rpc" in rpc) if made is not None]
    return {
        "name": case["name"],
        "setting": {
            "flags": setting.get("router_flags", []),
            "info": setting.get("shard_info", {}),
            "supported": (setting.get("warmup_answer") or {}).get("supported"),
            "prune": bool(setting.get("prune")),
            "step_s": setting.get("shard_step_s", 0.05),
        },
        "scripts": case.get("scripts") or [case.get("script")],
        "clients": [client(entry) for entry in case["clients"]],
        "calls": calls,
        "given": given(rpcs),
    }


def main(recordings: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        setting: dict[str, Any] = {}
        lines = []
        for line in (recordings / f"{name}.jsonl").read_text("utf-8").splitlines():
            case = json.loads(line)
            if "setting" in case and "rpcs" not in case:
                setting = case["setting"]
            elif case.get("rpcs"):
                lines.append(json.dumps(convert(case, case.get("setting", setting)), separators=(",", ":")))
        (target / f"{name.removeprefix('rpc-')}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("tests/data/tgi/rpc"))
