"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

Stream = AsyncGenerator[bytes]


async def merged(streams: Sequence[Stream]) -> Stream:
    """All run at the same time; their chunks come in turn, one of each, as long as it has any. As in TGI.

    Leaving early ends them all.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for lone in only:
                yield lone
        return
    queues: list[asyncio.Queue[bytes | None]] = [asyncio.Queue() for _ in streams]
    tasks = [asyncio.create_task(_pour(*pair)) for pair in zip(streams, queues, strict=True)]
    try:
        open_queues = queues
        while open_queues:
            still_open = []
            for queue in open_queues:
                if (chunk := await queue.get()) is not None:
                    still_open.append(queue)
                    yield chunk
            open_queues = still_open
        for task in tasks:
            await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pour(stream: Stream, queue: asyncio.Queue[bytes | None]) -> None:
    """None is the end."""
    try:
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                queue.put_nowait(chunk)
    finally:
        queue.put_nowait(None)
