"""The outcome as files: `poc.json` for programs, `poc.html` for people."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pageport.migration.poc import formatting, plots
from pageport.migration.poc.rows import outcome_as_json
from pageport.migration.poc.run import Outcome
from pageport.migration.poc.table import parity_line


def write_reports(outcome: Outcome, folder: Path) -> tuple[Path, Path]:
    """Write both files into `folder`, which is made where there is none; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_html = folder / "poc.json", folder / "poc.html"
    as_json.write_text(json.dumps(outcome_as_json(outcome), indent=2) + "\n", "utf-8")
    as_html.write_text(render_html(outcome), "utf-8")
    return as_json, as_html


def render_html(outcome: Outcome) -> str:
    """One page that needs nothing else: style, figures and numbers are in it."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for function in (
        formatting.bytes_text, formatting.milliseconds, formatting.percent, formatting.seconds, formatting.times,
    ):  # fmt: skip
        environment.filters[function.__name__] = function
    template = files("pageport.migration.poc").joinpath("template.html.j2").read_text("utf-8")
    data = outcome_as_json(outcome)
    single, batched, after = data["rows"]
    return environment.from_string(template).render(
        **data,
        kv_pool_bytes=outcome.plan.kv_cache_bytes,
        single=single,
        batched=batched,
        after=after,
        parity_lines=[parity_line(parity) for parity in outcome.parity],
        parities=outcome.parity,
        figures={
            name: Markup(draw(outcome.measurements))
            for name, draw in (
                ("throughput", plots.throughput),
                ("latency", plots.latency),
                ("kv", plots.kv_over_time),
                ("blocks", plots.memory_blocks),
            )
        },
    )
