"""How many streams the same KV memory serves: TGI's reservation against promising more tokens than there are.

    python benchmarks/overcommit.py [--kv-tokens 8192] [--requests 64] [--declared 512] [--write]

TGI's router admits a request when prompt + max_new_tokens fit beside what is reserved already, and clients seldom know
how long the answer will be: here all declare the same limit and stop where the workload says. A shard that promises
the router `overcommit` times its slots makes the same router admit more; the engine then takes blocks as tokens come,
and preempts when they run out. The admission below is the router's rule: first come, first served, whole blocks.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import click
from results import machine, write_section
from workload import Job, describe, mixed_workload

from pageport.core import EngineClient, SamplingParams, parse_engine_config, resolve_model
from pageport.migration.poc.environment import fast_cpu_dtype
from pageport.migration.poc.statistics import gaps, percentiles_ms

BLOCK_SIZE = 16


class Admission:
    """The router's bookkeeping: blocks reserved for a request's whole life, in order of arrival."""

    def __init__(self, blocks: int) -> None:
        self._free = blocks
        self._queue: deque[tuple[int, asyncio.Event]] = deque()
        self._streams = 0
        self._since = time.perf_counter()
        self.stream_seconds = 0.0
        self.peak = 0

    @asynccontextmanager
    async def reserve(self, tokens: int) -> AsyncIterator[None]:
        blocks = math.ceil(tokens / BLOCK_SIZE)
        admitted = asyncio.Event()
        self._queue.append((blocks, admitted))
        self._admit()
        await admitted.wait()
        try:
            yield
        finally:
            self._count(-1)
            self._free += blocks
            self._admit()

    def _admit(self) -> None:
        while self._queue and self._queue[0][0] <= self._free:
            blocks, admitted = self._queue.popleft()
            self._free -= blocks
            self._count(1)
            admitted.set()

    def _count(self, change: int) -> None:
        now = time.perf_counter()
        self.stream_seconds += self._streams * (now - self._since)
        self._since = now
        self._streams += change
        self.peak = max(self.peak, self._streams)


@dataclass(slots=True)
class Run:
    """One overcommit's outcome; latencies in seconds."""

    overcommit: float
    seconds: float = 0.0
    tokens: int = 0
    mean_streams: float = 0.0
    peak_streams: int = 0
    preemptions: int = 0
    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)


async def measure(client: EngineClient, jobs: list[Job], declared: int, overcommit: float) -> Run:
    admission = Admission(int(client.info.kv_token_capacity * overcommit) // BLOCK_SIZE)
    run = Run(overcommit)
    before = client.stats().num_preemptions

    async def one(job: Job) -> None:
        sent = time.perf_counter()
        arrivals: list[float] = []
        sampling = SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True)
        async with admission.reserve(len(job.prompt) + declared):
            async for output in client.submit(list(job.prompt), sampling):
                arrivals.append(time.perf_counter())
                run.tokens += len(output.token_ids)
        run.ttft.append(arrivals[0] - sent)
        run.itl += gaps(arrivals)

    start = time.perf_counter()
    await asyncio.gather(*map(one, jobs))
    run.seconds = time.perf_counter() - start
    run.mean_streams, run.peak_streams = admission.stream_seconds / run.seconds, admission.peak
    run.preemptions = client.stats().num_preemptions - before
    return run


async def compare(
    engine: dict[str, object], jobs: list[Job], declared: int, overcommits: list[float]
) -> tuple[list[Run], int]:
    """A fresh engine for each run; also says how many token slots its memory holds."""
    runs = []
    slots = 0
    for overcommit in overcommits:
        client = EngineClient(parse_engine_config(engine))
        await client.start()
        try:
            slots = client.info.kv_token_capacity
            run = await measure(client, jobs, declared, overcommit)
        finally:
            await client.close()
        runs.append(run)
        click.echo(
            f"overcommit {overcommit:g}: {run.mean_streams:.1f} streams, {run.tokens / run.seconds:.1f} tok/s"
        )
    return runs, slots


def markdown(runs: list[Run], jobs: list[Job], slots: int, declared: int, dtype: str) -> str:
    lines = [
        f"{describe(jobs)}; every client declares max_new_tokens {declared}; {slots:,} token slots; {dtype}.",
        "",
        "| overcommit | streams at once, mean | peak | output tok/s | TTFT p50 / p95, s | ITL p50 / p95, ms "
        "| preemptions |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        ttft, itl = percentiles_ms(run.ttft), percentiles_ms(run.itl)
        assert ttft is not None
        assert itl is not None
        name = "1 (TGI's reservation)" if run.overcommit == 1 else f"{run.overcommit:g}"
        lines.append(
            f"| {name} | {run.mean_streams:.1f} | {run.peak_streams} | {run.tokens / run.seconds:.1f} "
            f"| {ttft.p50 / 1e3:.1f} / {ttft.p95 / 1e3:.1f} | {itl.p50:.0f} / {itl.p95:.0f} | {run.preemptions} |"
        )
    return "\n".join([*lines, "", f"{machine()}."])


@click.command()
@click.option("--model", default="demo", show_default=True)
@click.option("--kv-mib", default=180, show_default=True, type=click.IntRange(1))
@click.option("--requests", default=64, show_default=True, type=click.IntRange(2))
@click.option("--declared", default=512, show_default=True, type=click.IntRange(1))
@click.option("--overcommits", default="1,1.5,2,3,4", show_default=True, help="comma-separated factors")
@click.option("--write", is_flag=True, help="put the table into RESULTS.md")
def main(model: str, kv_mib: int, requests: int, declared: int, overcommits: str, write: bool) -> None:
    """Measure, print, and perhaps keep."""
    folder = resolve_model(model)
    jobs = mixed_workload(folder, requests)
    dtype = fast_cpu_dtype()
    engine = {"model": folder, "dtype": dtype, "device": "cpu", "kv_cache_memory_bytes": kv_mib * 2**20}
    factors = [float(factor) for factor in overcommits.split(",")]
    runs, slots = asyncio.run(compare(engine, jobs, declared, factors))
    table = markdown(runs, jobs, slots, declared, dtype)
    click.echo("\n" + table)
    if write:
        write_section("overcommit", table)


if __name__ == "__main__":
    main()
