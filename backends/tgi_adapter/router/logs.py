"""The router's log, in the two forms that readers of TGI's log know: JSON lines, and text with a span in braces."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pageport.backends.tgi_adapter.router.errors import RouterError
from pageport.backends.tgi_adapter.router.inference import GenerateInput, InferenceTimes, ValidRequest
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters

_log = logging.getLogger("pageport.tgi_adapter.router")


def configure_logging(level: str, *, json_output: bool) -> None:
    """All of the process's log goes to standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter() if json_output else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


def log_finished(request: GenerateInput, valid: ValidRequest, times: InferenceTimes) -> None:
    """One line for a request that was answered to its end, with TGI's fields and both numbers of tokens."""
    if not _log.isEnabledFor(logging.INFO):
        return
    span = {
        "parameters": describe(request.parameters),
        "total_time": duration(times.finished - times.start),
        "validation_time": duration(times.validated - times.start),
        "queue_time": duration(times.queued_until - times.validated),
        "inference_time": duration(times.inference),
        "time_per_token": duration(times.per_token),
        "seed": f"Some({valid.parameters.seed})",
        "prompt_tokens": valid.input_length,
        "generated_tokens": times.generated_tokens,
        "name": request.route,
    }
    _log.info("Success", extra={"span": span})


def log_failed(request: GenerateInput, error: RouterError) -> None:
    span = {"parameters": describe(request.parameters), "name": request.route}
    _log.error("%s", error.message, extra={"span": span})


def duration(seconds: float) -> str:
    """As TGI prints it: three digits' steps of unit, nanoseconds at most."""
    nanoseconds = max(0, round(seconds * 1e9))
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.9f}".rstrip("0").rstrip(".") + unit
    return f"{nanoseconds}ns"


def describe(parameters: GenerateParameters) -> str:
    """The parameters in the notation of TGI's log, which its readers parse."""
    required = ("do_sample", "stop", "watermark", "details", "decoder_input_details")
    fields = (
        f"{name}: {_value(value) if name in required or value is None else f'Some({_value(value)})'}"
        for name, value in parameters
    )
    return f"GenerateParameters {{ {', '.join(fields)} }}"


def _value(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | str):
        return json.dumps(value, ensure_ascii=False)
    return str(value.model_dump_json(by_alias=True))


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": _timestamp(record),
            "level": _level(record),
            "message": _message(self, record),
            "target": record.name,
        }
        if (span := _span(record)) is not None:
            line["span"] = span
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level, the span with its fields, where it comes from, what happened."""

    def format(self, record: logging.LogRecord) -> str:
        span = _span(record)
        where = f"{record.name}: {_message(self, record)}"
        if span is not None:
            fields = " ".join(f"{name}={value}" for name, value in span.items() if name != "name")
            where = f"{span['name']}{{{fields}}}: {where}"
        return f"{_timestamp(record)} {_level(record):>5} {where}"


def _timestamp(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )


def _level(record: logging.LogRecord) -> str:
    return {"WARNING": "WARN", "CRITICAL": "ERROR"}.get(record.levelname, record.levelname)


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    message = record.getMessage()
    if record.exc_info:
        message += "\n" + formatter.formatException(record.exc_info)
    return message


def _span(record: logging.LogRecord) -> Mapping[str, Any] | None:
    span: Mapping[str, Any] | None = getattr(record, "span", None)
    return span
