"""Makes tests/data/tgi/launcher-args.jsonl from recordings of TGI's launcher.

    python scripts/convert_tgi_launcher.py RECORDINGS [tests/data/tgi]

Kept of a case: the flags that it was given, and what the launcher printed of all its arguments. Dropped: arguments that
every case was given to run at all (ports, paths).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_ALWAYS_GIVEN = {
    "model_id",
    "hostname",
    "port",
    "prometheus_port",
    "shard_uds_path",
    "json_output",
    "usage_stats",
}
_ARGUMENT = re.compile(r"^    (\w+): (.*?),$(?=\n    \w|\n})", re.MULTILINE | re.DOTALL)


def arguments(printed: str) -> dict[str, Any]:
    """The arguments by name, of Rust's long form of a struct."""
    found = _ARGUMENT.findall(printed)
    return {name: value_of(" ".join(text.split())) for name, text in found if name not in _ALWAYS_GIVEN}


def value_of(text: str) -> Any:
    """A value of Rust's; the name of an enum's member in small letters."""
    if text == "None":
        return None
    if text.startswith("Some("):
        return value_of(text.removeprefix("Some(").removesuffix(")").strip().removesuffix(","))
    if text.startswith("["):
        return [value_of(item) for item in re.findall(r"[^\[\], ]+", text)]
    try:
        return json.loads(text)
    except ValueError:
        return text.lower()


def main(recordings: Path, target: Path) -> None:
    lines: dict[str, None] = {}
    for line in (recordings / "launcher.jsonl").read_text("utf-8").splitlines():
        case = json.loads(line)
        (printed,) = [text for _, text, *_ in case["launcher_output"] if text.startswith("Args {")]
        kept = {"flags": case["launcher_flags"], "arguments": arguments(printed)}
        lines[json.dumps(kept, separators=(",", ":"))] = None
    (target / "launcher-args.jsonl").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path("tests/data/tgi"))
