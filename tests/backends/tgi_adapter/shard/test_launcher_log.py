"""Log lines as the launcher parses them."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from pageport.backends.tgi_adapter.shard.launcher_log import log_for_launcher

LEVELS = {"TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL"}
READ_AT_ONCE = 32 * 1024


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    output = capsys.readouterr().out
    assert output == "" or output.endswith("\n")
    return [json.loads(line) for line in output.splitlines()]


def test_a_record_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_for_launcher("INFO", json_output=True)
    logging.getLogger("anybody").warning("two\nlines: %s", "ü")
    (line,) = lines(capsys)
    assert line["text"] == "two\nlines: ü\n"
    assert line["record"]["level"]["name"] == "WARNING"


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("TRACE", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]),
        ("DEBUG", ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]),
        ("INFO", ["INFO", "WARNING", "ERROR", "CRITICAL"]),
        ("WARN", ["WARNING", "ERROR", "CRITICAL"]),
        ("ERROR", ["ERROR", "CRITICAL"]),
        ("OFF", []),
        ("what", ["INFO", "WARNING", "ERROR", "CRITICAL"]),
    ],
)
def test_levels_of_the_launcher(capsys: pytest.CaptureFixture[str], level: str, seen: list[str]) -> None:
    log_for_launcher(level, json_output=True)
    for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        logging.getLogger("x").log(getattr(logging, name), name)
    assert [line["record"]["level"]["name"] for line in lines(capsys)] == seen
    assert set(seen) <= LEVELS


def test_tracebacks_and_warnings_are_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    log_for_launcher("INFO", json_output=True)
    try:
        raise ZeroDivisionError("no way")
    except ZeroDivisionError:
        logging.getLogger("x").exception("it broke")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old way", DeprecationWarning, stacklevel=1)
    broke, old = lines(capsys)
    assert broke["text"].startswith("it broke\nTraceback")
    assert "no way" in broke["text"]
    assert "old way" in old["text"]


def test_no_line_is_longer_than_the_launcher_reads(capsys: pytest.CaptureFixture[str]) -> None:
    log_for_launcher("INFO", json_output=True)
    logging.getLogger("x").info("begin%send", "\N{SNOWMAN}" * 100_000)
    output = capsys.readouterr().out
    assert len(output) < READ_AT_ONCE
    text = json.loads(output)["text"]
    assert text.startswith("begin")
    assert text.endswith("end\n")


def test_plain_lines_without_the_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    log_for_launcher("INFO", json_output=False)
    logging.getLogger("x").info("hello")
    assert capsys.readouterr().out.endswith("INFO x: hello\n")
    assert sys.stdout is not None
