"""Whether the shard is well: it is while its engine serves, or will in a moment."""

from __future__ import annotations

import time
from collections.abc import Callable

from pageport.core import EngineClientProtocol

DEFAULT_PATIENCE_S = 60.0


class HealthWatch:
    """A pause in which the next engine starts is no reason to replace the server: requests go on after it, and new
    ones wait. One that lasts much longer than a start is.

    Args:
        patience_s: how long the engine may be away, from the first time that somebody asks.
    """

    def __init__(
        self,
        engine: EngineClientProtocol,
        patience_s: float = DEFAULT_PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._patience_s = patience_s
        self._clock = clock
        self._away_since: float | None = None
        self._given_up = False

    def give_up(self) -> None:
        """There will be no engine any more."""
        self._given_up = True

    def problem(self) -> str | None:
        """What is wrong now; None: nothing."""
        if self._given_up:
            return "the engine is gone and will not be started again"
        if self._engine.health():
            self._away_since = None
            return None
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        away = now - self._away_since
        if away < self._patience_s:
            return None
        return f"there has been no engine for {away:.0f} s"
