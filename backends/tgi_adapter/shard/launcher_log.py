"""Log lines as TGI's launcher reads them: loguru's serialised form, whole lines, on standard output."""

from __future__ import annotations

import json
import logging
import sys

# The launcher passes Rust's names, and reads loguru's. OFF lets nothing through.
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "SUCCESS": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 1,
}

# The launcher reads 32 KiB at once, and drops a line that it gets in two pieces. A character may take six bytes.
_MOST_CHARACTERS = 4096


class _LoguruFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if len(text) > _MOST_CHARACTERS:
            text = f"{text[: _MOST_CHARACTERS // 2]} [...] {text[-_MOST_CHARACTERS // 2 :]}"
        return json.dumps(
            {
                "text": f"{text}\n",
                "record": {
                    "level": {"name": record.levelname, "no": record.levelno},
                    "name": record.name,
                    "time": {"timestamp": record.created},
                },
            }
        )


def log_for_launcher(level: str, *, json_output: bool) -> None:
    """Send everything that this process logs, and all warnings, to standard output.

    Args:
        level: any name that the launcher or loguru knows; an unknown one means INFO.
        json_output: one JSON object a line, else plain text.
    """
    handler = logging.StreamHandler(sys.stdout)  # one write a record, and a flush
    plain = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(_LoguruFormatter() if json_output else logging.Formatter(plain))
    logging.basicConfig(level=_LEVELS.get(level.upper(), logging.INFO), handlers=[handler], force=True)
    logging.captureWarnings(True)
