"""The folder to put first on PATH: its `text-generation-server` is ours, or steps aside."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

COMMAND = "text-generation-server"

# Values of PAGEPORT that choose the original server.
ORIGINAL = ("0", "false", "no", "off", COMMAND)

_SCRIPT = """#!/bin/sh
# {command}: Pageport's. With PAGEPORT=0 the next {command} on PATH, which is the original.
case "${{PAGEPORT:-1}}" in
  {original}) ;;
  *) exec {python} -c 'from pageport.cli.tgi_server import main; main()' "$@" ;;
esac
own=$(cd "$(dirname "$0")" && pwd -P)
IFS=:
for folder in $PATH; do
  [ -x "$folder/{command}" ] || continue
  [ "$(cd "$folder" && pwd -P)" = "$own" ] && continue
  exec "$folder/{command}" "$@"
done
echo "PAGEPORT=$PAGEPORT asks for the original {command}, and there is none on PATH after $own" >&2
exit 127
"""


def write_shim(folder: Path, python: str) -> Path:
    """Make the folder and its script; a second call changes nothing.

    Args:
        python: the interpreter that has Pageport.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = _SCRIPT.format(command=COMMAND, original="|".join(ORIGINAL), python=shlex.quote(python))
    script = folder / COMMAND
    if not script.is_file() or script.read_text("utf-8") != text:
        # Written beside and moved: a launcher that starts at this moment never sees half a script.
        fresh = script.with_name(f".{COMMAND}.{os.getpid()}")
        fresh.write_text(text, "utf-8")
        fresh.chmod(0o755)
        fresh.replace(script)
    return folder
