"""A validated request through the engine: admission, one stream of events, best-of, and the times of it all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from pageport.backends.tgi_adapter.generation import GeneratedText, PrefillToken, TokenEvent
from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.core import ServiceClass


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """A request that may go to the engine.

    Attributes:
        inputs: the prompt as text (for `return_full_text` and the headers' character count).
        prompt_ids: what the engine gets: tokenised, truncated on the left.
        details, decoder_input_details: what the answer shall show.
    """

    inputs: str
    prompt_ids: tuple[int, ...]
    parameters: GenerationParameters
    best_of: int = 1
    service_class: ServiceClass = ServiceClass.REALTIME


@dataclass(slots=True)
class InferenceTimes:
    """Seconds of `time.monotonic`: when a request came, was valid, was first scheduled, and when its last event came.

    Attributes:
        start: when the server began to work on it.
        validated: validation ended.
        queued_until: the engine took it up; known with the first event.
        finished: known with the last event.
    """

    start: float = 0.0
    validated: float = 0.0
    queued_until: float = 0.0
    finished: float = 0.0


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """A complete answer."""

    generated: GeneratedText
    events: tuple[TokenEvent, ...]
    prefill: tuple[PrefillToken, ...]
    times: InferenceTimes
    best_of_sequences: tuple[InferenceResult, ...] = field(default=())


class Inference(Protocol):
    """What the routes see of the engine."""

    def stream(self, request: ValidRequest, times: InferenceTimes) -> AsyncIterator[TokenEvent]:
        """The events of one answer as they come. Leaving the iterator early ends the request in the engine.

        Raises (RouterError, see `errors.py`, on the first iteration or later): overloaded, validation, generation,
        incomplete generation.
        """
        ...

    async def generate(self, request: ValidRequest, times: InferenceTimes) -> InferenceResult:
        """A whole answer; with `best_of` the one with the highest mean log-probability, the others beside it."""
        ...
