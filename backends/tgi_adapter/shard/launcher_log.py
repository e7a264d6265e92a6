"""Log lines as TGI's launcher reads them: loguru's serialised form, whole lines, on standard output."""

from __future__ import annotations

import json
import logging
import sys

# The launcher passes Rust's names. Python has no TRACE; OFF lets nothing through.
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


class _LoguruFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        level = {"name": record.levelname, "no": record.levelno}
        body = {"level": level, "message": text, "name": record.name, "time": {"timestamp": record.created}}
        return json.dumps({"text": f"{text}\n", "record": body})


def log_for_launcher(level: str, *, json_output: bool) -> None:
    """Send everything that this process logs to standard output.

    Args:
        level: any name that the launcher or loguru knows; an unknown one means INFO.
        json_output: one JSON object a line, else plain text.
    """
    handler = logging.StreamHandler(sys.stdout)  # flushes after each record
    handler.setFormatter(
        _LoguruFormatter() if json_output else logging.Formatter("%(levelname)s %(message)s")
    )
    logging.basicConfig(level=_LEVELS.get(level.upper(), logging.INFO), handlers=[handler], force=True)
