"""The process that the launcher watches: it holds the socket and outlives its engine."""

from __future__ import annotations

import asyncio
import logging
import signal

from pageport.backends.tgi_adapter.shard.server import ShardServer
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import EngineClient, EngineConfig, PageportError, load_tokenizer

logger = logging.getLogger("pageport.tgi")


async def serve(config: EngineConfig, settings: ShardSettings) -> PageportError | None:
    """Serve until SIGTERM or SIGINT, or until there will be no engine any more; then returns why.

    Raises:
        ConfigError, ModelError, EngineDeadError: there never was an engine.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    engine = EngineClient(config)
    starting = asyncio.create_task(engine.start())
    stopping = asyncio.create_task(stopped.wait())
    try:
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stopped.is_set():
            return None
        await starting
        return await _serve(engine, config, settings, stopping)
    finally:
        starting.cancel()
        stopping.cancel()
        await engine.close()


async def _serve(
    engine: EngineClient, config: EngineConfig, settings: ShardSettings, stopping: asyncio.Task[bool]
) -> PageportError | None:
    tokenizer = load_tokenizer(config.tokenizer or config.model)
    server = ShardServer(engine, tokenizer, settings, block_size=config.block_size)
    dead = asyncio.create_task(engine.wait_dead())
    await server.start()
    logger.info("the shard serves %s at unix://%s", config.model, settings.socket_path)
    try:
        await asyncio.wait([dead, stopping], return_when=asyncio.FIRST_COMPLETED)
        if dead.done():
            server.core.engine_is_gone()
            return dead.result()
        return None
    finally:
        dead.cancel()
        await server.stop()
