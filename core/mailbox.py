"""Outputs of one request on their way from the engine's socket to whoever iterates over them."""

from __future__ import annotations

import asyncio

from pageport.core.errors import PageportError
from pageport.core.request import RequestOutput


class Mailbox:
    """Holds at most one output a sequence: deltas that pile up are merged, so a slow reader costs no memory
    beyond its own text and never holds up the others."""

    def __init__(self) -> None:
        self._outputs: dict[int, RequestOutput] = {}
        self._error: PageportError | None = None
        self._arrived = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        waiting = self._outputs.get(output.index)
        if waiting is None:
            self._outputs[output.index] = output
        else:
            waiting.merge(output)
        self._arrived.set()

    def fail(self, error: PageportError) -> None:
        """End the stream with an error, after the outputs that are here already."""
        self._error = error
        self._arrived.set()

    async def take(self) -> list[RequestOutput]:
        """Wait for outputs; all that are there, by sequence. Raises the error that `fail` was given."""
        await self._arrived.wait()
        self._arrived.clear()
        outputs = list(self._outputs.values())
        self._outputs.clear()
        if not outputs and self._error is not None:
            raise self._error
        if self._error is not None:
            self._arrived.set()
        return outputs
