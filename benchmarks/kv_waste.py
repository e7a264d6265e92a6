"""KV waste while requests with the lengths of a real trace are answered.

    python benchmarks/kv_waste.py AZURE_TRACE.csv [--requests 200] [--block-size 16] [--write]

The trace has columns ContextTokens and GeneratedTokens. Lengths are scaled by one factor, so that the longest
request of the whole trace fits the context; requests are drawn at random. The figure is the engine's own count,
averaged over time.
"""

from __future__ import annotations

import asyncio
import csv
import os
import random
import time
from pathlib import Path

import click
from results import machine, write_section
from tokenizers import Tokenizer
from workload import Job

from pageport.core import (
    EngineClient,
    EngineInfo,
    EngineStats,
    SamplingParams,
    parse_engine_config,
    resolve_model,
)
from pageport.migration.poc.workload import make_prompt_ids


def read_lengths(trace: Path, context: int, requests: int, rng: random.Random) -> list[tuple[int, int]]:
    """Pairs of prompt and answer length, in tokens, drawn from the trace and scaled to the context."""
    with trace.open(newline="", encoding="utf-8") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    scale = min(1.0, context / max(prompt + answer for prompt, answer in rows))
    return [
        (max(1, int(prompt * scale)), max(1, int(answer * scale)))
        for prompt, answer in rng.sample(rows, requests)
    ]


async def replay(client: EngineClient, jobs: list[Job], concurrency: int) -> EngineStats:
    """Answer all jobs over a fixed number of streams; the figures at the end."""
    waiting = iter(jobs)
    done = 0

    async def stream() -> None:
        nonlocal done
        for job in waiting:
            sampling = SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True)
            async for _ in client.submit(list(job.prompt), sampling):
                pass
            done += 1
            if done % 20 == 0:
                stats = client.stats()
                click.echo(
                    f"{done:4} answered; waste now {stats.kv_waste_ratio:.2%}, mean {stats.kv_waste_ratio_mean:.2%}"
                )

    await asyncio.gather(*(stream() for _ in range(concurrency)))
    return client.stats()


def markdown(
    jobs: list[Job], stats: EngineStats, info: EngineInfo, block_size: int, concurrency: int, seconds: float
) -> str:
    prompts = sum(len(job.prompt) for job in jobs)
    outputs = sum(job.output_tokens for job in jobs)
    return "\n".join(
        [
            f"{len(jobs)} requests, {prompts:,} prompt tokens, {outputs:,} output tokens, {concurrency} streams, "
            f"context {info.max_model_len:,}, {info.dtype}, block size {block_size}; {seconds:.0f} s, "
            f"{stats.num_preemptions} preemptions, {stats.peak_running} requests at once at most.",
            "",
            f"**KV waste, time-averaged: {stats.kv_waste_ratio_mean:.2%}** of the reserved token slots held no token.",
            "",
            f"{machine()}.",
        ]
    )


@click.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--model", default="demo", show_default=True)
@click.option("--requests", default=200, show_default=True, type=click.IntRange(1))
@click.option("--concurrency", default=32, show_default=True, type=click.IntRange(1))
@click.option("--block-size", default=16, show_default=True, type=click.IntRange(1))
@click.option("--max-model-len", default=None, type=click.IntRange(2), help="the model's own if not given")
@click.option("--kv-bytes", default=2**30, show_default=True)
@click.option("--seed", default=1234, show_default=True)
@click.option("--write", is_flag=True, help="put the figure into RESULTS.md")
def main(
    trace: Path,
    model: str,
    requests: int,
    concurrency: int,
    block_size: int,
    max_model_len: int | None,
    kv_bytes: int,
    seed: int,
    write: bool,
) -> None:
    """Replay, print, and perhaps keep."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = resolve_model(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = random.Random(seed)
    config = parse_engine_config(
        {
            "model": folder,
            "block_size": block_size,
            "max_model_len": max_model_len,
            "kv_cache_memory_bytes": kv_bytes,
        }
    )

    async def run() -> str:
        client = EngineClient(config)
        await client.start()
        try:
            lengths = read_lengths(trace, client.info.max_model_len, requests, rng)
            jobs = [Job(tuple(make_prompt_ids(prompt, tokenizer, rng)), answer) for prompt, answer in lengths]
            start = time.perf_counter()
            stats = await replay(client, jobs, concurrency)
            return markdown(jobs, stats, client.info, block_size, concurrency, time.perf_counter() - start)
        finally:
            await client.close()

    text = asyncio.run(run())
    click.echo("\n" + text)
    if write:
        write_section("kv-waste", text)


if __name__ == "__main__":
    main()
