"""What the way through Triton costs: output tokens/s over a gRPC stream against the bare engine client.

    python benchmarks/adapter_tax.py [--requests 64] [--rounds 3] [--concurrency 32] [--write]

The same load, the same client code and the same kind of engine on both ways, in turns: bare, Triton, bare,
Triton … Both engines stay loaded; the one whose turn it is not waits without using a core. The bare way
tokenizes and detokenizes in the client's process, the Triton way in the server's.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click
from results import machine, write_section
from tokenizers import Tokenizer
from tritonclient.grpc import aio as grpc

from pageport.backends.triton_python.contract import ContractName
from pageport.backends.triton_python.repository import write_entry
from pageport.backends.triton_python.server import TritonServer
from pageport.core import EngineClient, SamplingParams, parse_engine_config, resolve_model
from pageport.migration.poc.environment import fast_cpu_dtype
from pageport.migration.poc.load import Ask, LoadResult, Piece, run_load
from pageport.migration.poc.triton_client import ask_after
from pageport.migration.poc.workload import LengthRange, LoadRequest, build_load

ENTRY = "pageport"
TIMEOUT_S = 600.0


def ask_bare(client: EngineClient) -> Ask:
    async def ask(request: LoadRequest) -> AsyncIterator[Piece]:
        sampling = SamplingParams(temperature=0.0, max_tokens=request.output_tokens, ignore_eos=True)
        async for output in client.submit(request.prompt, sampling):
            yield Piece(output.text, len(output.token_ids))

    return ask


async def compare(
    engine: dict[str, Any], grpc_url: str, load: list[LoadRequest], concurrency: int, rounds: int
) -> dict[str, list[LoadResult]]:
    results: dict[str, list[LoadResult]] = {"bare engine client": [], "through Triton": []}
    client = EngineClient(parse_engine_config(engine))
    await client.start()
    try:
        async with grpc.InferenceServerClient(grpc_url) as triton:
            asks = dict(zip(results, (ask_bare(client), ask_after(triton, ENTRY)), strict=True))
            for ask in asks.values():
                await run_load(ask, load[:2], concurrency=2, timeout_s=TIMEOUT_S)
            for number in range(rounds):
                for name, ask in asks.items():
                    result = await run_load(ask, load, concurrency=concurrency, timeout_s=TIMEOUT_S)
                    if result.failures:
                        raise RuntimeError(f"{name}: {result.failures[0].error}")
                    results[name].append(result)
                    click.echo(f"round {number + 1}: {name}: {result.output_tokens_per_s:.1f} tok/s")
    finally:
        await client.close()
    return results


def markdown(results: dict[str, list[LoadResult]], load: list[LoadRequest], setting: str) -> str:
    lines = [
        f"{len(load)} requests, {sum(r.prompt_tokens for r in load):,} prompt tokens, "
        f"{sum(r.output_tokens for r in load):,} output tokens; {setting}.",
        "",
        "| | output tok/s, each round | median | TTFT p50, ms | ITL p50 / p95, ms |",
        "|---|---|---|---|---|",
    ]
    medians = {}
    for name, rounds in results.items():
        rates = [result.output_tokens_per_s for result in rounds]
        medians[name] = statistics.median(rates)
        middle = min(rounds, key=lambda result: abs(result.output_tokens_per_s - medians[name]))
        assert middle.ttft is not None
        assert middle.itl is not None
        lines.append(
            f"| {name} | {', '.join(f'{rate:.1f}' for rate in rates)} | {medians[name]:.1f} "
            f"| {middle.ttft.p50:.0f} | {middle.itl.p50:.0f} / {middle.itl.p95:.0f} |"
        )
    bare, triton = results.values()
    ratios = [t.output_tokens_per_s / b.output_tokens_per_s for b, t in zip(bare, triton, strict=True)]
    lines += [
        "",
        f"**Through Triton: {statistics.median(ratios):.1%} of the bare engine client** (median of the rounds' ratios; "
        f"{min(ratios):.1%} – {max(ratios):.1%}).",
        "",
        f"{machine()}.",
    ]
    return "\n".join(lines)


@click.command()
@click.option("--model", default="demo", show_default=True)
@click.option("--requests", default=64, show_default=True, type=click.IntRange(2))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--concurrency", default=32, show_default=True, type=click.IntRange(1))
@click.option("--write", is_flag=True, help="put the table into RESULTS.md")
def main(model: str, requests: int, rounds: int, concurrency: int, write: bool) -> None:
    """Measure, print, and perhaps keep."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for the server's processes as well
    folder = resolve_model(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    load = build_load(requests, LengthRange(128, 16, 512), LengthRange(96, 16, 256), tokenizer, seed=1234)
    engine = {"dtype": fast_cpu_dtype(), "device": "cpu", "kv_cache_memory_bytes": 2**29}
    with tempfile.TemporaryDirectory(prefix="pageport-tax-") as scratch:
        repository = Path(scratch) / "models"
        write_entry(repository, ENTRY, str(folder), ContractName.VLLM, engine=engine)
        with TritonServer(repository) as server:
            results = asyncio.run(
                compare({**engine, "model": folder}, server.grpc_url, load, concurrency, rounds)
            )
    table = markdown(results, load, f"{engine['dtype']}, {concurrency} streams")
    click.echo("\n" + table)
    if write:
        write_section("adapter-tax", table)


if __name__ == "__main__":
    main()
