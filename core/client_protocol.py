"""The one seam that adapters see: submit, abort, health, stats. A fake engine has the same face."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from pageport.core.metrics import EngineInfo, EngineStats
from pageport.core.request import RequestOutput, ServiceClass
from pageport.core.sampling_params import SamplingParams


class EngineClientProtocol(Protocol):
    """The async face of an engine. All methods belong to the event loop that called `start`."""

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved; valid once `start` has returned."""
        ...

    async def start(self) -> None:
        """Start the engine and return when it can serve. Raises ConfigError, ModelError, EngineDeadError."""
        ...

    def submit(
        self,
        prompt: str | list[int],
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
        service_class: ServiceClass = ServiceClass.REALTIME,
    ) -> AsyncIterator[RequestOutput]:
        """Generate. Outputs are deltas; those that pile up while the caller is busy arrive merged.

        Leaving the iterator early (break, cancellation, `aclose`) aborts the request.

        Args:
            timeout: seconds from now.

        Raises (on the first iteration, or later where it can only be known later):
            InvalidRequestError: the prompt or a parameter cannot be honoured.
            RequestTimeoutError: `timeout` passed.
            EngineDeadError: the engine died under the request.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with FinishReason.CANCELLED. Unknown ids are ignored."""
        ...

    def health(self) -> bool:
        """True while the engine process lives and answers."""
        ...

    def stats(self) -> EngineStats:
        """The newest figures the engine has sent; at most a step, or a tenth of a second, old."""
        ...

    async def close(self) -> None:
        """Stop the engine; running requests end with EngineDeadError."""
        ...
