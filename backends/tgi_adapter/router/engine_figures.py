"""The engine's own figures, read at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pageport.core import EngineClientProtocol, EngineStats


class _Figure(NamedTuple):
    name: str
    help: str
    read: Callable[[EngineStats], float]


_COUNTERS = (
    _Figure("pageport_prompt_tokens_total", "Prompt tokens computed.", lambda stats: stats.prompt_tokens),
    _Figure("pageport_generation_tokens_total", "Tokens generated.", lambda stats: stats.generation_tokens),
    _Figure(
        "pageport_requests_finished_total",
        "Requests that have ended, whatever the reason.",
        lambda stats: stats.finished_requests,
    ),
    _Figure(
        "pageport_preemptions_total",
        "Times that a running request gave up its blocks.",
        lambda stats: stats.num_preemptions,
    ),
    _Figure(
        "pageport_prefix_cache_queries_total",
        "Prompt tokens looked up in the prefix cache.",
        lambda stats: stats.prefix_cache_queries,
    ),
    _Figure(
        "pageport_prefix_cache_hits_total",
        "Prompt tokens that the prefix cache had.",
        lambda stats: stats.prefix_cache_hits,
    ),
)

_GAUGES = (
    _Figure("tgi_queue_size", "Requests that wait for their turn.", lambda stats: stats.num_waiting),
    _Figure("tgi_batch_current_size", "Requests that run now.", lambda stats: stats.num_running),
    _Figure("pageport_requests_running", "Sequences that run now.", lambda stats: stats.num_running),
    _Figure(
        "pageport_requests_waiting", "Requests that wait for their turn.", lambda stats: stats.num_waiting
    ),
    _Figure("pageport_kv_blocks_total", "KV blocks there are.", lambda stats: stats.kv_blocks_total),
    _Figure("pageport_kv_blocks_used", "KV blocks in use.", lambda stats: stats.kv_blocks_used),
    _Figure("pageport_kv_bytes_total", "Bytes of all KV blocks.", lambda stats: stats.kv_bytes_total),
    _Figure("pageport_kv_bytes_used", "Bytes of the KV blocks in use.", lambda stats: stats.kv_bytes_used),
    _Figure(
        "pageport_kv_waste_ratio",
        "Reserved but unused token slots over reserved slots, now.",
        lambda stats: stats.kv_waste_ratio,
    ),
    _Figure(
        "pageport_kv_waste_ratio_mean",
        "Reserved but unused token slots over reserved slots, averaged over time.",
        lambda stats: stats.kv_waste_ratio_mean,
    ),
    _Figure(
        "pageport_peak_requests_running",
        "Most sequences that ran at once since the engine started.",
        lambda stats: stats.peak_running,
    ),
    _Figure(
        "pageport_peak_kv_blocks_used",
        "Most KV blocks in use at once since the engine started.",
        lambda stats: stats.peak_kv_blocks_used,
    ),
)


class EngineFigures(Collector):
    """One engine's `pageport_*`, and those of TGI's gauges that the engine knows."""

    def __init__(self, engine: EngineClientProtocol) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for figure in _COUNTERS:
            yield CounterMetricFamily(figure.name, figure.help, figure.read(stats))
        for figure in _GAUGES:
            yield GaugeMetricFamily(figure.name, figure.help, figure.read(stats))
        yield GaugeMetricFamily(
            "tgi_batch_current_max_tokens", "Token slots in use.", self._tokens_in_use(stats)
        )

    def describe(self) -> Iterator[Metric]:
        """Nothing: the engine need not have been started when a registry is made."""
        return iter(())

    def _tokens_in_use(self, stats: EngineStats) -> float:
        capacity = self._engine.info.kv_token_capacity
        return stats.kv_blocks_used * capacity // max(1, stats.kv_blocks_total)
