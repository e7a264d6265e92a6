"""The one seam that adapters see: submit, abort, health, stats. A fake engine has the same face."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from pageport.core.errors import PageportError
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
            EngineDeadError: engines died under the request in a row, or there will be no engine any more. The death of
                an engine alone is a pause: the next one goes on where the outputs so far end.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request, also while the engine is away; its stream ends with FinishReason.CANCELLED. Unknown ids are
        ignored.
        """
        ...

    def health(self) -> bool:
        """True while there is an engine process that serves; false while one is being started, and after `wait_dead`.

        Requests are taken in either case, and wait.
        """
        ...

    def stats(self) -> EngineStats:
        """The newest figures the engine has sent; at most a step old. Without an engine, all in flight wait."""
        ...

    async def wait_dead(self) -> PageportError:
        """Wait until the engine is dead for good, after too many starts in a row failed; why.

        A process that serves nothing but this engine may then end with an error. Does not return because of `close`.
        """
        ...

    async def close(self) -> None:
        """Stop the engine; requests in flight end with EngineDeadError."""
        ...
