"""Reads the KV figures from Triton's `/metrics` while a load runs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pageport.migration.poc.statistics import time_average

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(\{[^}]*\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def parse_metrics(text: str, entry: str) -> dict[str, float]:
    """Values of the Prometheus text format that carry the label `model="<entry>"`, by metric name.

    Buckets of histograms are left out: they share a name.
    """
    values = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2] or ""))
        if labels.get("model") == entry and "le" not in labels:
            values[match[1]] = float(match[3])
    return values


@dataclass(frozen=True, slots=True)
class KVSample:
    """Of one moment.

    Attributes:
        reserved, used: bytes kept for running requests; bytes of them that hold a token.
        running: requests that are being computed.
        peak_running: most of them so far, where the server counts that; else the same as `running`.
    """

    reserved: float
    used: float
    running: int
    peak_running: int


@dataclass(frozen=True, slots=True)
class KVTimeline:
    """Samples over a load; times are seconds since its start."""

    times: list[float] = field(default_factory=list)
    samples: list[KVSample] = field(default_factory=list)

    def add(self, moment: float, sample: KVSample) -> None:
        self.times.append(moment)
        self.samples.append(sample)

    @property
    def mean_reserved(self) -> float:
        return time_average(self.times, [s.reserved for s in self.samples])

    @property
    def mean_used(self) -> float:
        return time_average(self.times, [s.used for s in self.samples])

    @property
    def peak_reserved(self) -> float:
        return max((s.reserved for s in self.samples), default=0.0)

    @property
    def peak_running(self) -> int:
        return max((s.peak_running for s in self.samples), default=0)

    @property
    def waste_ratio(self) -> float | None:
        """Share of the reserved byte-seconds that held no token; None where nothing was reserved."""
        reserved = self.mean_reserved
        return 1.0 - self.mean_used / reserved if reserved else None


Fetch = Callable[[], str]
Read = Callable[[Mapping[str, float]], KVSample]


def read_before(values: Mapping[str, float]) -> KVSample:
    """The gauges of `before_model.py`, which looks at the transformers cache itself."""
    running = round(values.get("before_num_running", 0.0))
    return KVSample(
        values.get("before_kv_bytes_reserved", 0.0), values.get("before_kv_bytes_used", 0.0), running, running
    )


def read_after(values: Mapping[str, float]) -> KVSample:
    """Pageport's gauges: blocks that requests hold, and the share of their slots without a token."""
    reserved = values.get("pageport_kv_bytes_used", 0.0)
    used = reserved * (1.0 - values.get("pageport_kv_waste_ratio", 0.0))
    return KVSample(
        reserved,
        used,
        round(values.get("pageport_requests_running", 0.0)),
        round(values.get("pageport_peak_requests_running", 0.0)),
    )


async def sample_kv(fetch: Fetch, read: Read, entry: str, timeline: KVTimeline, interval_s: float) -> None:
    """Add samples to `timeline` until cancelled.

    Args:
        fetch: gets the text of `/metrics`; called in a thread.
    """
    start = time.perf_counter()
    while True:
        text = await asyncio.to_thread(fetch)
        timeline.add(time.perf_counter() - start, read(parse_metrics(text, entry)))
        await asyncio.sleep(interval_s)
