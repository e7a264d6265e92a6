"""The folder to put first on PATH: its `text-generation-server` is ours, or steps aside."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

COMMAND = "text-generation-server"

# Values of PAGEPORT that choose the original server, in any case.
ORIGINAL = ("0", "false", "no", "off", COMMAND)

# In sh, so that the way back does not need a Python that works.
_SCRIPT = """#!/bin/sh
# {command} of Pageport. With PAGEPORT=0 it steps aside for the next {command} on PATH, the original.
case "${{PAGEPORT:-1}}" in
  {original}) ;;
  *) exec {python} -P -c 'from pageport.cli.tgi_server import main; main()' "$@" ;;
esac
case "$0" in
  */*) own=$(cd "${{0%/*}}" && pwd -P) ;;
  *) own=$(pwd -P) ;;
esac
set -f
IFS=:
next=
for folder in $PATH; do
  folder=$(cd "${{folder:-.}}" 2>/dev/null && pwd -P) || continue
  if [ "$folder" = "$own" ]; then
    next=
  elif [ -z "$next" ] && [ -f "$folder/{command}" ] && [ -x "$folder/{command}" ]; then
    next="$folder/{command}"
  fi
done
[ -n "$next" ] && exec "$next" "$@"
echo "PAGEPORT=$PAGEPORT asks for the original {command}, but PATH has none after $own" >&2
exit 127
"""


def write_shim(folder: Path, python: str) -> Path:
    """Make the folder and its script; a second call changes nothing.

    Args:
        python: the interpreter that has Pageport.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = _SCRIPT.format(
        command=COMMAND, original="|".join(map(_in_any_case, ORIGINAL)), python=shlex.quote(python)
    )
    script = folder / COMMAND
    if not script.is_file() or script.read_text("utf-8") != text:
        # Written beside and moved: a launcher that starts at this moment never sees half a script.
        fresh = script.with_name(f".{COMMAND}.{os.getpid()}")
        fresh.write_text(text, "utf-8")
        fresh.chmod(0o755)
        fresh.replace(script)
    return folder


def _in_any_case(word: str) -> str:
    """A pattern of sh."""
    return "".join(f"[{char.lower()}{char.upper()}]" if char.isalpha() else char for char in word)
