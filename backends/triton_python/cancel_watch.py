"""Noticing cancelled requests while no token comes: in the queue, or while a prompt is computed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from pageport.backends.triton_python.call import Call

# Below a decoding step of the demo model on a CPU: a single request's blocks are free within a step.
INTERVAL_S = 0.05
# Asking takes about 30 us a request, and 20 us of CPU time here and in the server each. With many requests the rounds
# become rarer instead of dearer: 200 ms apart with 32 of them, where a cancelled one wastes little.
MAX_SHARE_OF_TIME = 0.005


class CancelWatch:
    """One timer for all requests, which runs only while there are any. Belongs to one event loop."""

    def __init__(self, calls: Collection[Call]) -> None:
        self._calls = calls
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """There may be requests to watch now."""
        if self._timer is None:
            self._arm(INTERVAL_S)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, delay: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        began = time.monotonic()
        for call in self._calls:
            if call.task is not None and call.is_cancelled():
                call.task.cancel()
        if self._calls:
            self._arm(max(INTERVAL_S, (time.monotonic() - began) / MAX_SHARE_OF_TIME))
