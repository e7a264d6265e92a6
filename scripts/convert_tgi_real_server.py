"""What the real TGI server generated, as compact test data:

    python scripts/convert_tgi_real_server.py RECORDINGS [tests/data/tgi]

Kept are the answers of `/generate` that the padded path (float32) and the paged path (bfloat16) are the reference for:
not the padded path's frequency penalty, nor its alternatives to tokens where anything has changed the scores.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# What TGI's router makes of the one JSON schema among the cases.
_SCHEMA_AS_REGEX = (
    r'\{[ ]?"name"[ ]?:[ ]?"([^"\\\x00-\x1F\x7F-\x9F]|\\["\\]){,8}"[ ]?,'
    r'[ ]?"age"[ ]?:[ ]?(-)?(0|[1-9][0-9]*)[ ]?\}'
)


def main() -> None:
    recordings = Path(sys.argv[1])
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else "tests/data/tgi")
    for path in ("fallback", "paged"):
        name = f"real-server-{path}.jsonl"
        lines = [json.loads(line) for line in (recordings / name).read_text().splitlines()]
        cases = [_case(line, is_padded=path == "fallback") for line in lines if _is_wanted(line, path)]
        text = "".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n" for case in cases)
        (folder / name).write_text(text)


def _is_wanted(line: dict[str, Any], path: str) -> bool:
    if line.get("request", {}).get("path") != "/generate" or "details" not in line["answer"]:
        return False
    return path == "paged" or not line["name"].startswith(("frequency_penalty", "both penalties"))


def _case(line: dict[str, Any], *, is_padded: bool) -> dict[str, Any]:
    asked, details = line["request"]["json"], line["answer"]["details"]
    parameters = {
        k: v for k, v in asked["parameters"].items() if k not in ("adapter_id", "details", "grammar")
    }
    grammar = asked["parameters"].get("grammar")
    if grammar is not None:
        parameters["regex"] = _SCHEMA_AS_REGEX if grammar["type"] == "json" else grammar["value"]
    case = {
        "name": line["name"],
        "inputs": asked["inputs"],
        "parameters": parameters,
        "text": line["answer"]["generated_text"],
        "finish": details["finish_reason"],
        "seeded": details["seed"] is not None,
        "tokens": [[t["id"], t["text"], round(t["logprob"], 5)] for t in details["tokens"]],
    }
    if details["prefill"]:
        case["prefill"] = [[t["id"], t["logprob"] and round(t["logprob"], 5)] for t in details["prefill"]]
    if details.get("top_tokens") and (not is_padded or line["name"].startswith(("greedy", "do_sample"))):
        case["top"] = [[[t["id"], round(t["logprob"], 5)] for t in top] for top in details["top_tokens"]]
    return case


if __name__ == "__main__":
    main()
