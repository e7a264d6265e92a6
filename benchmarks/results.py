"""Puts a benchmark's Markdown into its section of RESULTS.md, and names the machine."""

from __future__ import annotations

from pathlib import Path

import checkout  # noqa: F401

from pageport.migration.poc.environment import describe_environment, load_average

RESULTS = Path(__file__).with_name("RESULTS.md")


def write_section(name: str, markdown: str, path: Path = RESULTS) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->`.

    Raises:
        ValueError: the file has no such section.
    """
    text = path.read_text("utf-8")
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    head, found, rest = text.partition(start)
    if not found or end not in rest:
        raise ValueError(f"{path} has no section {name!r}")
    path.write_text(head + start + markdown.strip() + "\n" + end + rest.partition(end)[2], "utf-8")


def machine() -> str:
    """One line: where and with what."""
    about = describe_environment()
    return (
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; Python {about['python']}, "
        f"torch {about['torch']}, transformers {about['transformers']}; commit {about.get('commit', 'unknown')}; "
        f"{str(about['date'])[:10]}; load average at the end {load_average():.1f}"
    )
