"""Numbers as people read them."""

from __future__ import annotations

NOTHING = "–"


def bytes_text(value: float) -> str:
    """Mebibytes with one decimal below 100."""
    mebibytes = value / 2**20
    return f"{mebibytes:.1f} MiB" if mebibytes < 100 else f"{mebibytes:,.0f} MiB"


def milliseconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def seconds(value_ms: float | None) -> str:
    """Milliseconds in, seconds out."""
    return NOTHING if value_ms is None else f"{value_ms / 1e3:.2f} s"


def percent(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.1%}"


def times(ratio: float) -> str:
    """How many times as much: 1.8×, 12×."""
    return f"{ratio:.1f}×" if ratio < 10 else f"{ratio:.0f}×"
