"""Writing figures into Triton's metrics. Each write is a message to the server: about 10 us of CPU time."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

logger = logging.getLogger("pageport.triton")


Labels = Mapping[str, str]


class _Unpublished:
    """Stands in for a metric where the server was started without metrics."""

    def increment(self, amount: float) -> None: ...
    def set(self, value: float) -> None: ...
    def observe(self, value: float) -> None: ...


class _Family:
    """One name in /metrics with its metrics, which are valid only as long as Triton's family object lives."""

    def __init__(self, kind: str, name: str, text: str) -> None:
        self._family: Any = None
        try:
            kind_number = getattr(pb_utils.MetricFamily, kind)
            self._family = pb_utils.MetricFamily(name=name, description=text, kind=kind_number)
        except pb_utils.TritonModelException as error:
            if "not supported" not in str(error).lower():
                raise
            logger.info("%s is not published: %s", name, error)

    def metric(self, labels: Labels, buckets: Sequence[float] | None = None) -> Any:
        if self._family is None:
            return _Unpublished()
        if buckets is None:
            return self._family.Metric(labels=dict(labels))
        return self._family.Metric(labels=dict(labels), buckets=list(buckets))


def _families(kind: str, names: Sequence[str], text: str) -> list[_Family]:
    return [_Family(kind, name, text) for name in names]


class _GrowingNumber:
    """Follows a number that only grows, and starts anew at zero with each engine process."""

    def __init__(self, families: Sequence[_Family], labels: Labels) -> None:
        self._families = families
        self._metrics = [family.metric(labels) for family in families]
        self._seen = 0.0

    def update(self, value: float) -> bool:
        """Add what has come since the last call; whether there was anything."""
        added = value - self._seen if value >= self._seen else value
        self._seen = value
        if added:
            for metric in self._metrics:
                metric.increment(added)
        return bool(added)


class Counter(_GrowingNumber):
    def __init__(self, names: Sequence[str], text: str, labels: Labels) -> None:
        super().__init__(_families("COUNTER", names, text), labels)


class Gauge:
    def __init__(self, names: Sequence[str], text: str, labels: Labels) -> None:
        self._families = _families("GAUGE", names, text)
        self._metrics = [family.metric(labels) for family in self._families]
        self._seen: float | None = None

    def update(self, value: float) -> bool:
        """Write a value; whether it is another than before."""
        if value == self._seen:
            return False
        self._seen = value
        for metric in self._metrics:
            metric.set(value)
        return True


class RequestHistogram:
    """Triton's own histogram: one message a value, so for what happens once a request."""

    def __init__(self, names: Sequence[str], text: str, labels: Labels, buckets: Sequence[float]) -> None:
        self._families = _families("HISTOGRAM", names, text)
        self._metrics = [family.metric(labels, buckets) for family in self._families]

    def observe(self, value: float) -> None:
        for metric in self._metrics:
            metric.observe(value)


class Distribution:
    """A histogram for what happens with each token: counted here, published a few times a second.

    Triton takes a histogram's values one message each, which would cost a third of sending the token itself.
    So the series that make up a histogram (`_bucket` with its label `le`, `_sum`, `_count`) are written as
    counters; queries cannot tell the difference.
    """

    def __init__(self, names: Sequence[str], text: str, labels: Labels, buckets: Sequence[float]) -> None:
        def series(suffix: str) -> list[_Family]:
            return _families("COUNTER", [name + suffix for name in names], text)

        bounds = [*(f"{bound:g}" for bound in buckets), "+Inf"]
        self._bounds = tuple(buckets)
        families = series("_bucket")
        self._buckets = [_GrowingNumber(families, {**labels, "le": bound}) for bound in bounds]
        self._sum = _GrowingNumber(series("_sum"), labels)
        self._count = _GrowingNumber(series("_count"), labels)
        self._counts = [0] * len(bounds)
        self._total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def flush(self) -> bool:
        """Publish what has been added; whether there was anything."""
        below = 0
        for counter, count in zip(self._buckets, self._counts, strict=True):
            below += count
            counter.update(below)
        self._sum.update(self._total)
        return self._count.update(below)
