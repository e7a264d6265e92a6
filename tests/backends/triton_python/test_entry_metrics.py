"""What an entry publishes of its engine's figures, on a stand-in for Triton's metric families."""

from __future__ import annotations

from pathlib import Path

import triton_python_backend_utils as stand_in
from fake_engine import FakeEngineClient

from pageport.backends.triton_python.metrics import EntryMetrics
from pageport.core import EngineConfig, EngineStats


class Measured(FakeEngineClient):
    figures = EngineStats(num_preemptions=3, prefix_cache_queries=900, prefix_cache_hits=640)

    def stats(self) -> EngineStats:
        return self.figures


async def test_counters_under_vllms_names_and_our_own() -> None:
    labels = {"model": "entry-metrics", "version": "1"}
    metrics = EntryMetrics(labels)
    client = Measured(EngineConfig(model=Path(".")))
    metrics.attach(client)
    client.figures = EngineStats(num_preemptions=4, prefix_cache_queries=1000, prefix_cache_hits=704)
    metrics.detach()
    published = {
        name: metric.value
        for name, family in stand_in.MetricFamily.by_name.items()
        for metric in family
        if metric.labels == labels and name.endswith(("preemptions_total", "queries_total", "hits_total"))
    }
    assert published == {
        "vllm:num_preemptions_total": 4,
        "pageport_preemptions_total": 4,
        "vllm:prefix_cache_queries_total": 1000,
        "pageport_prefix_cache_queries_total": 1000,
        "vllm:prefix_cache_hits_total": 704,
        "pageport_prefix_cache_hits_total": 704,
    }
