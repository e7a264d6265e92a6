"""The process that the launcher watches: it holds the socket, and outlives its engine."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine
from typing import Any

from pageport.backends.tgi_adapter.shard.health import DEFAULT_PATIENCE_S, HealthWatch
from pageport.backends.tgi_adapter.shard.server import ShardServer
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import EngineClient, EngineConfig, PageportError, load_tokenizer

logger = logging.getLogger("pageport.tgi")

# An engine may take so many times as long to start as the first one did before the shard calls itself ill.
_START_PATIENCE = 3.0


async def serve(config: EngineConfig, settings: ShardSettings) -> PageportError | None:
    """Serve until SIGTERM or SIGINT, or until there will be no engine any more; then returns why.

    Raises:
        PageportError: there never was an engine.
        OSError, RuntimeError: the socket cannot be bound.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    engine = EngineClient(config)
    try:
        begin = time.monotonic()
        if not await _unless(stopped, engine.start()):
            return None
        patience = max(DEFAULT_PATIENCE_S, _START_PATIENCE * (time.monotonic() - begin))
        server = ShardServer(
            engine,
            load_tokenizer(config.tokenizer or config.model),
            settings,
            HealthWatch(engine, patience),
        )
        return await _serve(engine, server, settings, stopped)
    finally:
        await engine.close()


async def _serve(
    engine: EngineClient, server: ShardServer, settings: ShardSettings, stopped: asyncio.Event
) -> PageportError | None:
    reason: PageportError | None = None

    async def watch() -> None:
        nonlocal reason
        reason = await engine.wait_dead()
        server.health.give_up()

    try:
        await server.start()
        logger.info("ready: %s", settings.socket_path)
        await _unless(stopped, watch())
        return reason
    finally:
        await server.stop()


async def _unless(stopped: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do something unless told to stop before it is done; whether it was done."""
    doing = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            return False
        await doing
        return True
    finally:
        for task in (doing, stopping):
            task.cancel()
