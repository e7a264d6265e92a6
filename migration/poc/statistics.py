"""From the timestamps of a load to the figures of a row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Median and 95th percentile, in milliseconds."""

    p50: float
    p95: float


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between closest ranks, as `numpy.percentile` does; `share` in 0..1.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a percentile of nothing")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = math.ceil(position)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def percentiles_ms(seconds: Sequence[float]) -> Percentiles | None:
    """None where there is nothing to summarise."""
    if not seconds:
        return None
    return Percentiles(percentile(seconds, 0.5) * 1e3, percentile(seconds, 0.95) * 1e3)


def gaps(times: Iterable[float]) -> list[float]:
    """Seconds between each moment and the one before."""
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def time_average(times: Sequence[float], values: Sequence[float]) -> float:
    """Mean of samples weighted by the time until the next; the last sample has no weight.

    A single sample is its own mean, no sample gives 0.
    """
    if len(times) < 2:
        return values[0] if values else 0.0
    steps = gaps(times)
    return sum(v * dt for v, dt in zip(values, steps, strict=False)) / sum(steps)
