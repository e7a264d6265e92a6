"""Keeps the engine's counters and gauges up to date as it works."""

from __future__ import annotations

import time

from pageport.core.kv_cache import KVCacheSize
from pageport.core.metrics import EngineStats
from pageport.core.scheduler import Scheduler, StepPlan
from pageport.core.waste_meter import WasteMeter


class StatsKeeper:
    """Reads the scheduler and block manager where something changes; one snapshot for everybody."""

    def __init__(self, scheduler: Scheduler, size: KVCacheSize) -> None:
        self._scheduler = scheduler
        self._size = size
        self._waste = WasteMeter()
        self._peak_running = 0
        self._peak_blocks = 0
        self._steps = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished = 0
        self._first_queries, self._first_hits = scheduler.prefix_queries, scheduler.prefix_hits

    def observe(self) -> None:
        """Note block usage after it changed."""
        self._waste.observe(self._scheduler.kv.usage(), time.monotonic())

    def observe_step(self, plan: StepPlan) -> None:
        """Note a step that is about to be computed."""
        self._steps += 1
        self._peak_running = max(self._peak_running, len(plan.scheduled))
        self._peak_blocks = max(self._peak_blocks, self._scheduler.kv.pool.num_used)
        self.observe()

    def count_prompt(self, tokens: int) -> None:
        self._prompt_tokens += tokens

    def count_generated(self) -> None:
        self._generation_tokens += 1

    def count_finished(self) -> None:
        self._finished += 1

    def snapshot(self) -> EngineStats:
        kv = self._scheduler.kv
        return EngineStats(
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            kv_blocks_total=kv.pool.num_blocks,
            kv_blocks_used=kv.pool.num_used,
            kv_bytes_total=self._size.total_bytes,
            kv_bytes_used=kv.pool.num_used * self._size.bytes_per_block,
            kv_waste_ratio=kv.usage().waste_ratio,
            kv_waste_ratio_mean=self._waste.mean_ratio,
            peak_running=self._peak_running,
            peak_kv_blocks_used=self._peak_blocks,
            num_preemptions=self._scheduler.num_preemptions,
            prefix_cache_queries=self._scheduler.prefix_queries - self._first_queries,
            prefix_cache_hits=self._scheduler.prefix_hits - self._first_hits,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            finished_requests=self._finished,
            steps=self._steps,
        )
