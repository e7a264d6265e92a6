"""KV waste over time: the integral of wasted slots over the integral of reserved ones."""

from __future__ import annotations

from pageport.core.kv_manager import KVUsage


class WasteMeter:
    """Averages `KVUsage` over the time in which anything was reserved; each reading holds until the next."""

    def __init__(self) -> None:
        self._reserved = 0.0
        self._wasted = 0.0
        self._last: KVUsage | None = None
        self._since = 0.0

    def observe(self, usage: KVUsage, now: float) -> None:
        """Record the usage from `now` (seconds, monotonic) on."""
        if self._last is not None:
            elapsed = now - self._since
            self._reserved += self._last.reserved_slots * elapsed
            self._wasted += (self._last.reserved_slots - self._last.used_slots) * elapsed
        self._last, self._since = usage, now

    @property
    def mean_ratio(self) -> float:
        return self._wasted / self._reserved if self._reserved else 0.0
