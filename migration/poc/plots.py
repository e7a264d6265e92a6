"""The page's figures, drawn by matplotlib as inline SVG."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from pageport.migration.poc.formatting import NOTHING, seconds
from pageport.migration.poc.measure import Measurement

# One colour a variant; dark enough on white and light enough on a dark page.
COLOURS = ("#8a94a6", "#d08a3c", "#2f9e8f")
_INK = "#7d8796"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, sharp, in the page's own font
    "svg.hashsalt": "pageport",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def throughput(measurements: Sequence[Measurement]) -> str:
    """Output tokens per second, a bar for each variant."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        values = [m.result.output_tokens_per_s for m in measurements]
        bars = axes.barh(_titles(measurements), values, color=COLOURS, height=0.62)
        axes.bar_label(bars, [f"{value:.0f}" for value in values], padding=5, fontsize=12, color=_INK)
        _bare(axes, "output tokens per second", max(values))
        axes.set_ylim(len(values) - 0.5, -0.5)

    return _svg(draw, 7.4, 2.3)


def latency(measurements: Sequence[Measurement]) -> str:
    """Time to the first token and between tokens, median and 95th percentile."""

    def draw(figure: Figure) -> None:
        first, between = figure.subplots(1, 2, sharey=True)
        _latency_bars(
            first, measurements, [m.result.ttft for m in measurements], "seconds to the first token"
        )
        _latency_bars(between, measurements, [m.result.itl for m in measurements], "seconds between tokens")

    return _svg(draw, 7.4, 2.7)


def _latency_bars(axes: Any, measurements: Sequence[Measurement], values: Sequence[Any], label: str) -> None:
    longest = max((value.p95 for value in values if value), default=1.0) / 1e3
    for place, (value, colour) in enumerate(zip(values, COLOURS, strict=False)):
        if value is None:
            axes.text(0, place, f"{NOTHING} not streamed", va="center", fontsize=9)
            continue
        axes.barh(place, value.p95 / 1e3, color=colour, height=0.62, alpha=0.4)
        axes.barh(place, value.p50 / 1e3, color=colour, height=0.62)
        text = f"{seconds(value.p50)} · {seconds(value.p95)}"
        axes.text(value.p95 / 1e3 + longest * 0.03, place, text, va="center", fontsize=9)
    axes.set_yticks(range(len(measurements)), _titles(measurements))
    _bare(axes, label, longest * 1.45)
    axes.set_ylim(len(measurements) - 0.5, -0.5)


def kv_over_time(measurements: Sequence[Measurement]) -> str:
    """KV bytes kept and in use while the load ran; one panel a variant, each with its own clock."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(measurements), sharey=True)
        for axes, measurement, colour in zip(panels, measurements, COLOURS, strict=False):
            kv = measurement.kv
            reserved = [sample.reserved / 2**20 for sample in kv.samples]
            used = [sample.used / 2**20 for sample in kv.samples]
            axes.fill_between(kv.times, reserved, step="post", color=colour, alpha=0.35, lw=0)
            axes.fill_between(kv.times, used, step="post", color=colour, lw=0)
            axes.set_title(measurement.variant.title, fontsize=10, color=_INK)
            axes.set_xlabel("seconds")
            axes.set_xlim(left=0)
        peak = max(measurement.kv.peak_reserved for measurement in measurements) / 2**20
        panels[0].set_ylim(0, peak * 1.05 or 1.0)
        panels[0].set_ylabel("MiB of KV cache")

    return _svg(draw, 7.4, 2.7)


def memory_blocks(measurements: Sequence[Measurement]) -> str:
    """The KV memory of each variant at its fullest moment: a square is a mebibyte, full where it holds tokens."""
    fullest = [max(m.kv.samples, key=lambda s: s.reserved, default=None) for m in measurements]
    most = max((math.ceil(s.reserved / 2**20) for s in fullest if s), default=1)
    columns = max(8, math.ceil(math.sqrt(2 * most)))
    rows = max(1, math.ceil(most / columns))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(measurements))
        for axes, measurement, sample, colour in zip(panels, measurements, fullest, COLOURS, strict=False):
            _squares(axes, sample, columns, colour)
            axes.set_xlim(-0.3, columns + 0.3)
            axes.set_ylim(rows + 0.3, -0.3)
            axes.set_aspect("equal")
            axes.axis("off")
            axes.set_title(measurement.variant.title, fontsize=10, color=_INK)

    return _svg(draw, 7.4, 0.5 + 2.3 * rows / columns)


def _squares(axes: Any, sample: Any, columns: int, colour: str) -> None:
    if sample is None:
        return
    used = sample.used / 2**20
    for index in range(math.ceil(sample.reserved / 2**20)):
        row, column = divmod(index, columns)
        corner = (column + 0.06, row + 0.06)
        patch = matplotlib.patches.Rectangle
        axes.add_patch(patch(corner, 0.88, 0.88, facecolor=colour, alpha=0.3, lw=0))
        share = min(max(used - index, 0.0), 1.0)
        if share > 0:
            axes.add_patch(patch(corner, 0.88 * share, 0.88, facecolor=colour, lw=0))


def _titles(measurements: Sequence[Measurement]) -> list[str]:
    return [measurement.variant.title.replace(", ", ",\n") for measurement in measurements]


def _bare(axes: Any, label: str, longest: float) -> None:
    """Horizontal bars without a frame: the numbers stand beside them."""
    axes.set_xlim(0, longest * 1.12)
    axes.set_xlabel(label)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _svg(draw: Callable[[Figure], None], width: float, height: float) -> str:
    """Draw on an empty figure of that many inches; gives an `<svg>` element that scales with its column."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg))
