"""What the routes see of the engine: a request goes in as its client wrote it; events come out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from pageport.backends.tgi_adapter.generation import GeneratedText, PrefillToken, TokenEvent
from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters
from pageport.core import Grammar, SamplingParams, ServiceClass

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateInput:
    """A request that nobody has validated yet.

    Attributes:
        inputs: the prompt as text (also for `return_full_text` and the headers' character count).
        prompt_ids: the prompt as tokens, where the client sent tokens; they are taken as they are.
        start: `time.monotonic` when the server began to work on it.
        route: its name in traces and logs.
        stream: what only whole answers can have is refused.
        add_special_tokens: off for prompts that a chat template made.
        grammar: one that the server made itself; it stands in place of the parameters' own.
        logit_bias: token id to addition.
        trace_context: the client's W3C trace headers.
        field_names: what the client calls the parameters, where it has other names for them; for errors.
    """

    inputs: str
    parameters: GenerateParameters
    start: float
    route: str = "generate"
    stream: bool = False
    add_special_tokens: bool = True
    prompt_ids: tuple[int, ...] | None = None
    grammar: Grammar | None = None
    logit_bias: Mapping[int, float] | None = None
    service_class: ServiceClass = ServiceClass.REALTIME
    trace_context: Mapping[str, str] = field(default_factory=dict)
    field_names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """A request that may go to the engine.

    Attributes:
        prompt_ids: what the engine gets: tokenised, truncated on the left.
        sampling: the parameters, as the engine gets them.
    """

    prompt_ids: tuple[int, ...]
    parameters: GenerationParameters
    sampling: SamplingParams

    @property
    def input_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_ids)


@dataclass(slots=True)
class InferenceTimes:
    """When a request came, was valid, was first scheduled, and when its last event came: seconds of `time.monotonic`.

    Attributes:
        queued_until: the engine took it up; known with the first event.
        last_event: the newest there is.
        finished: known with the last event of all.
        generated_tokens: so far.
    """

    start: float
    validated: float = 0.0
    queued_until: float = 0.0
    last_event: float = 0.0
    finished: float = 0.0
    generated_tokens: int = 0

    @property
    def inference(self) -> float:
        """Seconds in the engine."""
        return self.finished - self.queued_until

    @property
    def per_token(self) -> float:
        """Seconds a token took in the engine, on average."""
        return self.inference / self.generated_tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer on its way.

    Attributes:
        events: what came since one last looked, in order, never empty. The last one of all carries `generated`.
            Raises RouterError: generation, incomplete generation, validation (what only the engine can know).
    """

    request: ValidRequest
    times: InferenceTimes
    events: AsyncIterator[list[TokenEvent]]


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """A complete answer.

    Attributes:
        best_of_sequences: the other answers, where `best_of` asked for several.
    """

    request: ValidRequest
    times: InferenceTimes
    generated: GeneratedText
    events: tuple[TokenEvent, ...]
    prefill: tuple[PrefillToken, ...]
    best_of_sequences: tuple[WholeAnswer, ...] = ()


class Inference(Protocol):
    """Admission, validation, the engine, and the figures about all three."""

    def open(self, request: GenerateInput) -> AbstractAsyncContextManager[Answer]:
        """One answer, event by event. Leaving the block early ends the request in the engine.

        Raises (RouterError, on entering): overloaded, validation.
        """
        ...

    async def generate(self, request: GenerateInput) -> WholeAnswer:
        """A whole answer; with `best_of` the one with the highest mean log-probability, the others beside it.

        Raises (RouterError): overloaded, validation, generation, incomplete generation.
        """
        ...

    async def is_healthy(self) -> bool:
        """Whether the engine serves; after a failure in it, whether it generates a token."""
        ...


async def all_of(answers: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Answers that are made at the same time, in their order. The first that fails ends the others, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer) for answer in answers]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
