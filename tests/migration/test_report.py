"""What stands in the files is what was measured."""

from __future__ import annotations

import dataclasses
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from pageport.migration.poc.report import render_html, write_reports
from pageport.migration.poc.rows import outcome_as_json
from pageport.migration.poc.table import print_outcome
from tests.migration.outcomes import MIB, make_outcome


class _Page(HTMLParser):
    """Text and links of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def page() -> _Page:
    return _Page(render_html(make_outcome()))


def test_rows_have_the_agreed_names() -> None:
    rows = outcome_as_json(make_outcome())["rows"]
    assert [row["name"] for row in rows] == ["before", "before_batched", "after"]
    agreed = {
        "name", "output_tokens_per_s", "ttft_ms", "itl_ms", "peak_running",
        "kv_bytes_reserved", "kv_bytes_used", "kv_waste_ratio",
    }  # fmt: skip
    assert all(agreed <= row.keys() for row in rows)


def test_row_values_by_hand() -> None:
    before, _, after = outcome_as_json(make_outcome())["rows"]
    assert before["output_tokens_per_s"] == 2.0
    assert before["ttft_ms"] == {"p50": 3000.0, "p95": 3900.0}
    assert before["itl_ms"] == {"p50": None, "p95": None}
    assert after["output_tokens_per_s"] == 16.0
    assert after["itl_ms"] == {"p50": 100.0, "p95": 100.0}
    assert after["peak_running"] == 3
    assert after["kv_bytes_reserved"] == 15 * MIB
    assert after["kv_bytes_used"] == 7.5 * MIB
    assert after["kv_waste_ratio"] == 0.5


def test_parity_totals() -> None:
    parity = outcome_as_json(make_outcome())["parity"]
    assert (parity["compared"], parity["equal"]) == (3, 2)
    assert parity["by_dtype"]["bfloat16"] == {
        "compared": 2, "equal": 1, "tokens_compared": 8, "tokens_equal": 5,
    }  # fmt: skip
    (difference,) = parity["first_differences"]
    assert (difference["request"], difference["position"]) == (1, 1)
    assert (difference["before_token"], difference["after_token"]) == (6, 9)


def test_both_files_are_written(tmp_path: Path) -> None:
    as_json, as_html = write_reports(make_outcome(), tmp_path / "new" / "reports")
    assert json.loads(as_json.read_text("utf-8")) == outcome_as_json(make_outcome())
    assert as_html.read_text("utf-8").startswith("<!doctype html>")


def test_the_headline_is_measured(page: _Page) -> None:
    # 16 tokens/s against 2 and 4.
    assert "8.0× the output of the model as it is served today, 4.0× that of static batches" in page.text


def test_the_headline_follows_the_figures() -> None:
    outcome = make_outcome()
    slow = dataclasses.replace(outcome.measurements[2], result=outcome.measurements[0].result)
    outcome = dataclasses.replace(outcome, measurements=[*outcome.measurements[:2], slow])
    assert "1.0× the output of the model as it is served today, 0.5×" in _Page(render_html(outcome)).text


@pytest.mark.parametrize(
    "value", ["16.0", "3,900", "15.0 MiB", "7.5 MiB", "50.0%", "a <fast> CPU", "256 MiB"]
)
def test_the_page_shows(page: _Page, value: str) -> None:
    assert value in page.text


def test_the_page_needs_nothing_else(page: _Page) -> None:
    assert page.tags.count("svg") == 4
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert all(link.startswith("#") for link in page.links)


def test_the_table_shows_the_figures() -> None:
    console = Console(file=io.StringIO(), width=80)
    print_outcome(make_outcome(), console)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("16.0", "3,000 / 3,900", "100 / 100", "15.0 MiB", "50.0%", "1 of 2 equal", "–"):
        assert text in output
    assert "…" not in output
