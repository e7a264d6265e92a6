"""Offline throughput on the mixed workload: Pageport against transformers' two ways of batching.

    python benchmarks/serving.py [--requests 64] [--rounds 3] [--dtype bfloat16] [--write]

All three compute in the same dtype with the same number of threads and the same OMP_WAIT_POLICY. They take turns, round
by round, on one machine; an engine whose turn it is not holds no core. Pageport's engine runs in its own process,
as it does behind a server. Every answer has its exact length, whatever the model would like.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from results import machine, write_section
from workload import Job, describe, mixed_workload

from pageport.core import EngineClient, SamplingParams, parse_engine_config, resolve_model
from pageport.migration.poc.environment import fast_cpu_dtype
from pageport.migration.poc.parity import compare

STATIC_BATCH = 8

Answers = list[list[int]]
Run = Callable[[list[Job]], Answers]


@contextmanager
def pageport(model: Path, dtype: str, threads: int, kv_bytes: int) -> Iterator[Run]:
    """All jobs at once; the engine forms its batches."""
    config = parse_engine_config(
        {
            "model": model,
            "dtype": dtype,
            "device": "cpu",
            "num_threads": threads,
            "omp_wait_policy": os.environ["OMP_WAIT_POLICY"].lower(),
            "kv_cache_memory_bytes": kv_bytes,
            "enable_prefix_caching": False,  # every round asks the same prompts again
        }
    )
    client = EngineClient(config)

    async def answer(job: Job) -> list[int]:
        sampling = SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True)
        ids: list[int] = []
        async for output in client.submit(list(job.prompt), sampling):
            ids += output.token_ids
        return ids

    async def answers(jobs: list[Job]) -> Answers:
        return await asyncio.gather(*(answer(job) for job in jobs))

    with asyncio.Runner() as runner:
        runner.run(client.start())
        try:
            yield lambda jobs: runner.run(answers(jobs))
        finally:
            runner.run(client.close())


def load_transformers(model: Path, dtype: str, threads: int) -> Any:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    loaded.generation_config.eos_token_id = None
    return loaded


def static_batches(model: Any) -> Run:
    """`generate` on batches of 8 in order of arrival, padded on the left; the longest answer ends the batch."""
    import torch

    def batch(jobs: Sequence[Job]) -> Answers:
        width = max(len(job.prompt) for job in jobs)
        ids = torch.zeros(len(jobs), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, job in enumerate(jobs):
            ids[row, width - len(job.prompt) :] = torch.tensor(job.prompt)
            mask[row, width - len(job.prompt) :] = 1
        longest = max(job.output_tokens for job in jobs)
        output = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=longest)
        return [
            row[width : width + job.output_tokens].tolist() for row, job in zip(output, jobs, strict=True)
        ]

    def run(jobs: list[Job]) -> Answers:
        return [
            answer
            for start in range(0, len(jobs), STATIC_BATCH)
            for answer in batch(jobs[start : start + STATIC_BATCH])
        ]

    return run


def continuous_batching(model: Any, kv_bytes: int) -> Run:
    """transformers' own continuous batching with its paged SDPA attention and default page size."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = model.config
    token_bytes = (
        2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
    )
    page = ContinuousBatchingConfig().page_size
    settings = ContinuousBatchingConfig(
        num_blocks=kv_bytes // (token_bytes * page), max_batch_tokens=512, max_requests_per_batch=64
    )
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=512)

    def run(jobs: list[Job]) -> Answers:
        results: dict[str, list[int]] = {}
        with model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=settings, timeout=30, warmup=False
        ) as manager:
            names = [manager.add_request(list(job.prompt), max_new_tokens=job.output_tokens) for job in jobs]
            while len(results) < len(jobs):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    if result.error is not None:
                        raise RuntimeError(result.error)
                    results[result.request_id] = result.generated_tokens
                elif result is None and not manager.is_running():
                    raise RuntimeError("transformers' generation thread has ended")
        return [results[name] for name in names]

    return run


def check_lengths(name: str, jobs: list[Job], answers: Answers) -> None:
    for index, (job, answer) in enumerate(zip(jobs, answers, strict=True)):
        if len(answer) != job.output_tokens:
            raise RuntimeError(f"{name}: answer {index} has {len(answer)} tokens, not {job.output_tokens}")


def markdown(
    jobs: list[Job], seconds: dict[str, list[float]], answers: dict[str, Answers], setting: str
) -> str:
    """The table: medians, spread, and how many answers equal those of static batching."""
    tokens = sum(job.output_tokens for job in jobs)
    base = next(iter(seconds))
    base_rate = tokens / statistics.median(seconds[base])
    lines = [
        f"{describe(jobs)}; {setting}.",
        "",
        "| | output tok/s, median | lowest – highest | against static batching | equal answers | equal tokens |",
        "|---|---|---|---|---|---|",
    ]
    for name, times in seconds.items():
        rates = sorted(tokens / t for t in times)
        rate = tokens / statistics.median(times)
        parity = compare("", answers[base], answers[name])
        lines.append(
            f"| {name} | {rate:.1f} | {rates[0]:.1f} – {rates[-1]:.1f} | {rate / base_rate:.2f} × "
            f"| {parity.equal} of {parity.compared} | {parity.tokens_equal:,} of {parity.tokens_compared:,} |"
        )
    return "\n".join([*lines, "", f"{machine()}."])


@click.command()
@click.option("--model", default="demo", show_default=True)
@click.option("--requests", default=64, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--dtype", default=None, help="bfloat16 or float32; what is fast here if not given")
@click.option("--threads", default=os.cpu_count(), show_default=True, type=click.IntRange(1))
@click.option("--kv-bytes", default=2**30, show_default=True, help="KV memory of the paged ones")
@click.option("--skip-continuous", is_flag=True, help="leave transformers' continuous batching out")
@click.option("--write", is_flag=True, help="put the table into RESULTS.md")
@click.option("--section", default="serving", show_default=True, help="of RESULTS.md")
def main(
    model: str,
    requests: int,
    rounds: int,
    dtype: str | None,
    threads: int,
    kv_bytes: int,
    skip_continuous: bool,
    write: bool,
    section: str,
) -> None:
    """Measure, print, and perhaps keep."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads
    folder = resolve_model(model)
    dtype = dtype or fast_cpu_dtype()
    jobs = mixed_workload(folder, requests)
    click.echo(describe(jobs))
    with pageport(folder, dtype, threads, kv_bytes) as paged:
        reference = load_transformers(folder, dtype, threads)
        runs = {f"transformers, static batches of {STATIC_BATCH}": static_batches(reference)}
        if not skip_continuous:
            # Its own copy: continuous batching exchanges the model's attention.
            other = load_transformers(folder, dtype, threads)
            runs["transformers, continuous batching"] = continuous_batching(other, kv_bytes)
        runs["Pageport"] = paged
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        answers: dict[str, Answers] = {}
        for run in runs.values():
            run([Job(job.prompt[:16], 4) for job in jobs[:2]])  # warm up
        for number in range(rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                answers[name] = run(jobs)
                seconds[name].append(time.perf_counter() - start)
                check_lengths(name, jobs, answers[name])
                click.echo(f"round {number + 1}: {name}: {seconds[name][-1]:.1f} s")
    setting = f"{dtype}, {threads} threads, OMP_WAIT_POLICY={os.environ['OMP_WAIT_POLICY']}, rounds: {rounds}"
    table = markdown(jobs, seconds, answers, setting)
    click.echo("\n" + table)
    if write:
        write_section(section, table)


if __name__ == "__main__":
    main()
