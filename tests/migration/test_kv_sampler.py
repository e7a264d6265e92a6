"""Metrics pages and what is made of them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from pageport.migration.poc.kv_sampler import (
    KVSample,
    KVTimeline,
    parse_metrics,
    read_after,
    read_before,
    sample_kv,
)
from tests.migration.outcomes import MIB, make_kv

PAGE = """\
# HELP pageport_kv_bytes_used Bytes of the KV blocks in use.
# TYPE pageport_kv_bytes_used gauge
pageport_kv_bytes_used{model="after",version="1"} 1e+06
pageport_kv_bytes_used{model="other",version="1"} 5
pageport_kv_waste_ratio{model="after",version="1"} 0.25
pageport_requests_running{model="after",version="1"} 3
pageport_peak_requests_running{version="1",model="after"} 9
latency_bucket{model="after",le="0.1"} 4
nv_cpu_utilization 0.5
before_kv_bytes_reserved{model="before"} 800
before_kv_bytes_used{model="before"} 200
before_num_running{model="before"} 8
"""


def test_only_the_entrys_values() -> None:
    assert parse_metrics(PAGE, "after") == {
        "pageport_kv_bytes_used": 1e6,
        "pageport_kv_waste_ratio": 0.25,
        "pageport_requests_running": 3.0,
        "pageport_peak_requests_running": 9.0,
    }


def test_reading_pageport() -> None:
    assert read_after(parse_metrics(PAGE, "after")) == KVSample(1e6, 750_000.0, 3, 9)


def test_reading_the_tutorial_model() -> None:
    assert read_before(parse_metrics(PAGE, "before")) == KVSample(800, 200, 8, 8)


def test_an_entry_that_says_nothing() -> None:
    assert read_after({}) == read_before({}) == KVSample(0, 0, 0, 0)


def test_averages_by_hand() -> None:
    kv = make_kv((0.0, 10.0, 5.0), (1.0, 20.0, 18.0), (4.0, 0.0, 0.0))
    assert kv.mean_reserved == pytest.approx(MIB * (10 + 3 * 20) / 4)
    assert kv.mean_used == pytest.approx(MIB * (5 + 3 * 18) / 4)
    assert kv.waste_ratio == pytest.approx(1 - 59 / 70)
    assert kv.peak_reserved == 20 * MIB
    assert kv.peak_running == 3


def test_nothing_reserved_is_no_waste_figure() -> None:
    assert KVTimeline().waste_ratio is None
    assert KVTimeline().peak_running == 0


async def test_sampling_until_told_to_stop() -> None:
    timeline = KVTimeline()
    pages = iter([PAGE] * 3)
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fetch() -> str:
        page = next(pages, None)
        if page is None:
            loop.call_soon_threadsafe(enough.set)
            return ""
        return page

    task = asyncio.create_task(sample_kv(fetch, read_before, "before", timeline, interval_s=0.0))
    await asyncio.wait_for(enough.wait(), 30)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [sample.reserved for sample in timeline.samples[:3]] == [800, 800, 800]
    assert timeline.times == sorted(timeline.times)
