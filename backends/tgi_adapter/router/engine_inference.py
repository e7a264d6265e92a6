"""Requests through the engine: admission, validation, one stream of events, best-of, and what is counted of it all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from pageport.backends.tgi_adapter.generation import (
    GeneratedText,
    GenerationFailedError,
    GenerationReader,
    TokenEvent,
    TokenSpeller,
)
from pageport.backends.tgi_adapter.router.errors import ErrorKind, RouterError, invalid
from pageport.backends.tgi_adapter.router.inference import (
    Answer,
    GenerateInput,
    InferenceTimes,
    ValidRequest,
    WholeAnswer,
    all_of,
)
from pageport.backends.tgi_adapter.router.logs import log_failed, log_finished
from pageport.backends.tgi_adapter.router.metrics import RouterMetrics
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.backends.tgi_adapter.router.validation import Validator
from pageport.core import (
    EngineClientProtocol,
    EngineDeadError,
    GrammarKind,
    InvalidRequestError,
    PageportError,
    RequestOutput,
    SamplingParams,
)

if TYPE_CHECKING:
    from pageport.backends.tgi_adapter.router.tracing import RequestTracer


# The one-token request after which a server that has failed counts as healthy again must be through by then.
_PROBE_TIMEOUT_S = 10.0
_PROBE_TEXT = "liveness"
_PROBE = SamplingParams(max_tokens=1, temperature=0.0)


class EngineInference:
    """See `Inference`."""

    def __init__(
        self,
        settings: RouterSettings,
        engine: EngineClientProtocol,
        speller: TokenSpeller,
        validator: Validator,
        metrics: RouterMetrics,
        tracer: RequestTracer | None,
    ) -> None:
        self._engine = engine
        self._speller = speller
        self._validator = validator
        self._metrics = metrics
        self._tracer = tracer
        self._limit = settings.max_concurrent_requests
        self._admitted = 0
        self._healthy = True

    @asynccontextmanager
    async def open(self, request: GenerateInput) -> AsyncIterator[Answer]:
        with self._counted(request):
            async with self._run(request) as answer:
                yield answer
            if answer.times.finished:
                self._finished(request, answer.request, answer.times)

    async def generate(self, request: GenerateInput) -> WholeAnswer:
        with self._counted(request):
            best_of = request.parameters.best_of or 1
            answer = await (self._whole(request) if best_of <= 1 else self._best(request, best_of))
            self._finished(request, answer.request, answer.times)
            return answer

    async def is_healthy(self) -> bool:
        if not self._engine.health():
            self._healthy = False
        elif not self._healthy:
            self._healthy = await self._generates()
        return self._healthy

    # -- one answer ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _run(self, request: GenerateInput) -> AsyncIterator[Answer]:
        with self._admission():
            times = InferenceTimes(request.start)
            valid = await self._validator.validate(request)
            times.validated = time.monotonic()
            self._metrics.valid(valid)
            async with aclosing(self._events(request, valid, times)) as events:
                yield Answer(valid, times, events)

    async def _events(
        self, request: GenerateInput, valid: ValidRequest, times: InferenceTimes
    ) -> AsyncGenerator[list[TokenEvent]]:
        reader = GenerationReader(self._speller, valid.prompt_ids, valid.parameters)
        outputs = self._engine.submit(
            list(valid.prompt_ids), valid.sampling, service_class=request.service_class
        )
        with self._engine_errors(valid, times):
            async with _closing(outputs):
                async for output in outputs:
                    events = reader.read(output)
                    if events:
                        self._observe(output, events, times)
                        yield events
        if not times.finished:
            kind = ErrorKind.INCOMPLETE_STREAM if request.stream else ErrorKind.INCOMPLETE
            raise RouterError(kind, "the engine's answer broke off before its end")

    def _observe(self, output: RequestOutput, events: list[TokenEvent], times: InferenceTimes) -> None:
        """Note when the events came, and what that says of the engine."""
        now = time.monotonic()
        if times.last_event:
            self._metrics.next_tokens(len(events), now - times.last_event)
        else:
            times.queued_until = output.times.first_scheduled
            self._metrics.first_token(now - times.start)
        times.last_event = now
        times.generated_tokens += len(events)
        if events[-1].generated is not None:
            times.finished = now
            self._healthy = True
            self._metrics.answered(output.times, times)

    async def _whole(self, request: GenerateInput) -> WholeAnswer:
        collected: list[TokenEvent] = []
        async with self._run(request) as answer:
            async for events in answer.events:
                collected += events
        generated = collected[-1].generated
        assert generated is not None
        return _whole_answer(answer, generated, collected)

    async def _best(self, request: GenerateInput, best_of: int) -> WholeAnswer:
        """Independent requests; the answer with the highest mean log-probability carries the others."""
        self._validator.check(request)
        answers = await all_of(self._whole(request) for _ in range(best_of))
        best = max(answers, key=_mean_logprob)
        return replace(best, best_of_sequences=tuple(answer for answer in answers if answer is not best))

    # -- what surrounds it ---------------------------------------------------------------------------------

    @contextmanager
    def _counted(self, request: GenerateInput) -> Iterator[None]:
        """Counts a request, and why it came to nothing if it did."""
        self._metrics.requests.inc()
        try:
            yield
        except RouterError as error:
            error.name_as(request.field_names)
            self._metrics.failed(error.kind)
            log_failed(request, error)
            if self._tracer is not None:
                self._tracer.failed(request, error.kind.error_type, error.message)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._metrics.dropped()
            raise

    def _finished(self, request: GenerateInput, valid: ValidRequest, times: InferenceTimes) -> None:
        """A request was answered to its end; of several answers, these are the times of the best."""
        self._metrics.finished(times)
        log_finished(request, valid, times)
        if self._tracer is not None:
            self._tracer.finished(request, valid, times)

    @contextmanager
    def _admission(self) -> Iterator[None]:
        if self._admitted >= self._limit:
            raise RouterError(
                ErrorKind.OVERLOADED,
                f"max_concurrent_requests: {self._limit} requests are being served, and there is room for no more",
            )
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    @contextmanager
    def _engine_errors(self, valid: ValidRequest, times: InferenceTimes) -> Iterator[None]:
        """What the engine says when it does not answer, in the router's terms."""
        try:
            yield
        except InvalidRequestError as error:
            grammar = valid.parameters.grammar
            if error.field == "grammar" and grammar is not None and grammar.kind is GrammarKind.REGEX:
                raise RouterError(ErrorKind.GENERATION, str(error)) from error
            raise invalid(error.field, error.problem) from error
        except (GenerationFailedError, EngineDeadError) as error:
            self._healthy = False
            self._metrics.engine_failed(has_begun=bool(times.last_event))
            raise RouterError(ErrorKind.GENERATION, f"the engine failed: {error}") from error

    async def _generates(self) -> bool:
        """Whether the engine generates a token."""
        outputs = self._engine.submit(_PROBE_TEXT, _PROBE, timeout=_PROBE_TIMEOUT_S)
        try:
            async with _closing(outputs):
                return any([output.token_ids async for output in outputs])
        except PageportError:
            return False


def _closing(outputs: AsyncIterator[RequestOutput]) -> aclosing[AsyncGenerator[RequestOutput]]:
    """An engine's outputs are a generator: leaving them early ends the request."""
    assert isinstance(outputs, AsyncGenerator)
    return aclosing(outputs)


def _whole_answer(answer: Answer, generated: GeneratedText, events: list[TokenEvent]) -> WholeAnswer:
    return WholeAnswer(answer.request, answer.times, generated, tuple(events), events[0].prefill)


def _mean_logprob(answer: WholeAnswer) -> float:
    return sum(event.token.logprob for event in answer.events) / len(answer.events)
