"""The router over a scripted engine, in this process, set up as the recorded one was."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from scripted_engine import Script, ScriptedEngine
from tokenizers import Tokenizer
from transcript import Case, Reply, load_cases, replay

from pageport.backends.tgi_adapter.router.app import create_app
from pageport.backends.tgi_adapter.router.settings import RouterSettings

_NUMBERS = {
    "--max-client-batch-size": "max_client_batch_size",
    "--max-best-of": "max_best_of",
    "--max-stop-sequences": "max_stop_sequences",
    "--max-top-n-tokens": "max_top_n_tokens",
    "--max-concurrent-requests": "max_concurrent_requests",
    "--payload-limit": "payload_limit",
}


@dataclass(frozen=True)
class Replayed:
    """A case and what came of it."""

    case: Case
    reply: Reply


def recorded_settings(
    flags: tuple[str, ...] = (),
    *,
    compute_type: str = "gpu+optimized",
    max_input_tokens: int = 1023,
    max_total_tokens: int = 1024,
    strict: bool = False,
    **others: Any,
) -> RouterSettings:
    """The settings behind a recorded router's command line; `others` are settings by name."""
    pairs = list(itertools.pairwise(flags))
    numbers = {_NUMBERS[flag]: int(value) for flag, value in pairs if flag in _NUMBERS}
    return RouterSettings(
        model_id="demo-model",
        max_input_tokens=max_input_tokens,
        max_total_tokens=max_total_tokens,
        enable_prefill_logprobs=True,
        api_key=next((value for flag, value in pairs if flag == "--api-key"), None),
        cors_allow_origin=tuple(value for flag, value in pairs if flag == "--cors-allow-origin"),
        disable_grammar_support="--disable-grammar-support" in flags,
        compute_type=compute_type,
        strict=strict,
        **numbers,
        **others,
    )


@asynccontextmanager
async def running_router(
    settings: RouterSettings, tokenizer: Tokenizer, folder: Path
) -> AsyncIterator[tuple[httpx.AsyncClient, ScriptedEngine]]:
    """A client of the router, and its engine."""
    engine = ScriptedEngine(tokenizer)
    app = create_app(settings, engine, tokenizer, folder)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as client:
        yield client, engine
    assert engine.num_running == 0


async def replay_file(
    file: str,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    strict: bool,
    only: Callable[[Case], bool] = lambda case: True,
) -> list[Replayed]:
    """The cases in their order; one router for each run of cases with the same settings."""

    def settings_of(case: Case) -> RouterSettings:
        compute_type = case.environment.get("COMPUTE_TYPE", "gpu+optimized")
        return recorded_settings(case.flags, compute_type=compute_type, strict=strict)

    replayed: list[Replayed] = []
    for settings, cases in itertools.groupby(filter(only, load_cases(file)), settings_of):
        async with running_router(settings, tokenizer, folder) as (client, engine):
            replayed += [Replayed(case, await replay(case, client, engine)) for case in cases]
    return replayed


@contextmanager
def serving(
    script: Script, tokenizer: Tokenizer, folder: Path, *, first: Iterable[Script] = ()
) -> Iterator[str]:
    """A router on a free port, in a thread. `first`: scripts of the first requests."""
    engine = ScriptedEngine(tokenizer)
    engine.play(script)
    engine.play_in_turn(first)
    app = create_app(recorded_settings(), engine, tokenizer, folder)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive(), "the router did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
