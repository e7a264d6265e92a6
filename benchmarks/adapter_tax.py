"""What the way through a server costs: output tokens/s through Triton and through TGI against the bare engine client.

    python benchmarks/adapter_tax.py [--requests 64] [--rounds 3] [--concurrency 32] [--tgi-rust] [--write]

The same load, the same client code and the same kind of engine on all ways, in turns: bare, Triton, TGI, bare …
All engines stay loaded; those whose turn it is not wait without using a core. TGI's clients cannot ask a model to go
on after its end token, so a first pass finds where each greedy answer ends, and all ways then make just those tokens.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import click
from results import machine, write_section
from tgi_load import ask_tgi
from tgi_server import tgi_server
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


BARE = "bare engine client"


def ask_bare(client: EngineClient) -> Ask:
    async def ask(request: LoadRequest) -> AsyncIterator[Piece]:
        sampling = SamplingParams(temperature=0.0, max_tokens=request.output_tokens)
        async for output in client.submit(request.prompt, sampling):
            yield Piece(output.text, len(output.token_ids))

    return ask


async def natural_lengths(ask: Ask, load: list[LoadRequest], concurrency: int) -> list[LoadRequest]:
    """The load with each answer's limit lowered to where the model ends it."""

    async def one(request: LoadRequest, free: asyncio.Semaphore) -> LoadRequest:
        async with free:
            return replace(request, output_tokens=sum([piece.num_tokens async for piece in ask(request)]))

    free = asyncio.Semaphore(concurrency)
    return list(await asyncio.gather(*(one(request, free) for request in load)))


async def compare(
    engine: dict[str, Any],
    grpc_url: str,
    tgi_urls: dict[str, str],
    load: list[LoadRequest],
    concurrency: int,
    rounds: int,
) -> dict[str, list[LoadResult]]:
    client = EngineClient(parse_engine_config(engine))
    await client.start()
    unlimited = aiohttp.TCPConnector(limit=0)
    try:
        async with (
            grpc.InferenceServerClient(grpc_url) as triton,
            aiohttp.ClientSession(connector=unlimited) as session,
        ):
            asks = {BARE: ask_bare(client), "Triton": ask_after(triton, ENTRY)}
            asks |= {name: ask_tgi(session, url) for name, url in tgi_urls.items()}
            load = await natural_lengths(asks[BARE], load, concurrency)
            for ask in asks.values():  # all of them see the prompts once: prefix caches are warm alike
                await run_load(ask, load, concurrency=concurrency, timeout_s=TIMEOUT_S)
            return await take_turns(asks, load, concurrency, rounds)
    finally:
        await client.close()


async def take_turns(
    asks: dict[str, Ask], load: list[LoadRequest], concurrency: int, rounds: int
) -> dict[str, list[LoadResult]]:
    results: dict[str, list[LoadResult]] = {name: [] for name in asks}
    for number in range(rounds):
        for name, ask in asks.items():
            result = await run_load(ask, load, concurrency=concurrency, timeout_s=TIMEOUT_S)
            if result.failures:
                raise RuntimeError(f"{name}: {result.failures[0].error or 'another number of tokens'}")
            results[name].append(result)
            click.echo(f"round {number + 1}: {name}: {result.output_tokens_per_s:.1f} tok/s")
    return results


def markdown(results: dict[str, list[LoadResult]], setting: str) -> str:
    asked = [answer.request for answer in results[BARE][0].answers]
    lines = [
        f"{len(asked)} requests, {sum(r.prompt_tokens for r in asked):,} prompt tokens, "
        f"{sum(r.output_tokens for r in asked):,} output tokens; {setting}.",
        "",
        "| | output tok/s, each round | median | of the bare client, median (lowest – highest) | TTFT p50, ms "
        "| ITL p50 / p95, ms |",
        "|---|---|---|---|---|---|",
    ]
    bare = [result.output_tokens_per_s for result in results[BARE]]
    for name, rounds in results.items():
        rates = [result.output_tokens_per_s for result in rounds]
        median = statistics.median(rates)
        ratios = [rate / own for rate, own in zip(rates, bare, strict=True)]
        middle = min(rounds, key=lambda result: abs(result.output_tokens_per_s - median))
        assert middle.ttft is not None
        assert middle.itl is not None
        lines.append(
            f"| {name} | {', '.join(f'{rate:.1f}' for rate in rates)} | {median:.1f} "
            f"| {statistics.median(ratios):.1%} ({min(ratios):.1%} – {max(ratios):.1%}) "
            f"| {middle.ttft.p50:.0f} | {middle.itl.p50:.0f} / {middle.itl.p95:.0f} |"
        )
    return "\n".join([*lines, "", f"{machine()}."])


@click.command()
@click.option("--model", default="demo", show_default=True)
@click.option("--requests", default=64, show_default=True, type=click.IntRange(2))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--concurrency", default=32, show_default=True, type=click.IntRange(1))
@click.option("--tgi-rust", is_flag=True, help="also TGI's own launcher and router, which must be on PATH")
@click.option("--write", is_flag=True, help="put the table into RESULTS.md")
def main(model: str, requests: int, rounds: int, concurrency: int, tgi_rust: bool, write: bool) -> None:
    """Measure, print, and perhaps keep."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for the servers' processes as well
    folder = resolve_model(model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    load = build_load(requests, LengthRange(128, 16, 512), LengthRange(96, 16, 256), tokenizer, seed=1234)
    engine = {"dtype": fast_cpu_dtype(), "device": "cpu", "kv_cache_memory_bytes": 2**29}
    with tempfile.TemporaryDirectory(prefix="pageport-tax-") as scratch, ExitStack() as servers:
        repository = Path(scratch) / "models"
        write_entry(repository, ENTRY, str(folder), ContractName.VLLM, engine=engine)
        server = servers.enter_context(TritonServer(repository))
        routers = {"TGI, embedded router": False} | ({"TGI, its own router": True} if tgi_rust else {})
        urls = {
            name: servers.enter_context(tgi_server(folder, rust=rust, engine=engine))
            for name, rust in routers.items()
        }
        results = asyncio.run(
            compare({**engine, "model": folder}, server.grpc_url, urls, load, concurrency, rounds)
        )
    table = markdown(results, f"{engine['dtype']}, {concurrency} streams")
    click.echo("\n" + table)
    if write:
        write_section("adapter-tax", table)


if __name__ == "__main__":
    main()
