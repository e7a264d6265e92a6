"""TGI's metrics under their own names, kinds, labels and buckets, and Pageport's beside them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary

from pageport.backends.tgi_adapter.router.engine_figures import EngineFigures
from pageport.backends.tgi_adapter.router.errors import ErrorKind
from pageport.backends.tgi_adapter.router.exposition import exposition
from pageport.backends.tgi_adapter.router.inference import InferenceTimes, ValidRequest
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.core import EngineClientProtocol, RequestTimes

_FIRST_TOKEN_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
)
_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)

_PREFILL, _DECODE = "prefill", "decode"


def _durations() -> list[float]:
    """Seconds, each bucket half as long again as the one before."""
    return list(itertools.accumulate([1.5] * 35, lambda value, factor: value * factor, initial=0.0001))[1:]


def _hundredths(limit: int) -> list[float]:
    return [limit / 100 * (number + 1) for number in range(100)]


class RouterMetrics:
    """Everything that one router counts, in a registry of its own."""

    def __init__(self, settings: RouterSettings, engine: EngineClientProtocol) -> None:
        self._registry = registry = CollectorRegistry()
        self._engine = engine
        self.requests = Counter("tgi_request_count", "Requests that came.", registry=registry)
        self._success = Counter("tgi_request_success", "Requests answered to their end.", registry=registry)
        self._failure = Counter("tgi_request_failure", "Requests that failed.", ["err"], registry=registry)

        def seconds(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(name, text, labels, buckets=_durations(), registry=registry)

        def numbers(name: str, text: str, buckets: list[float]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=registry)

        self._duration = seconds("tgi_request_duration", "Seconds from arrival to end.")
        self._validation = seconds("tgi_request_validation_duration", "Seconds of validation.")
        self._queue = seconds("tgi_request_queue_duration", "Seconds in the queue.")
        self._inference = seconds("tgi_request_inference_duration", "Seconds in the engine.")
        self._per_token = seconds("tgi_request_mean_time_per_token_duration", "Seconds a token, on average.")
        self._input_length = numbers(
            "tgi_request_input_length", "Tokens of a prompt.", _hundredths(settings.max_input_tokens)
        )
        self._max_new_tokens = numbers(
            "tgi_request_max_new_tokens", "Tokens a request may get.", _hundredths(settings.max_total_tokens)
        )
        self._generated = numbers(
            "tgi_request_generated_tokens", "Tokens a request got.", _hundredths(settings.max_total_tokens)
        )
        self._skipped = Summary(
            "tgi_request_skipped_tokens", "Tokens accepted without a step of their own.", registry=registry
        )
        self._first_token = Histogram(
            "pageport_time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token.",
            buckets=_FIRST_TOKEN_SECONDS,
            registry=registry,
        )
        self._next_token = Histogram(
            "pageport_inter_token_latency_seconds",
            "Seconds between two tokens of an answer, as they leave for the client.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self._batch = _BatchMetrics(seconds, numbers, registry)
        registry.register(EngineFigures(engine))

    def valid(self, request: ValidRequest) -> None:
        """A request passed validation."""
        self._input_length.observe(request.input_length)
        self._max_new_tokens.observe(request.parameters.max_new_tokens)

    def failed(self, kind: ErrorKind) -> None:
        """A request was refused, or came to nothing."""
        if kind.failure is not None:
            self._failure.labels(kind.failure).inc()

    def dropped(self) -> None:
        """The client of a request left."""
        self._failure.labels("dropped").inc()

    def first_token(self, seconds: float) -> None:
        """A request's first token comes, so long after the request."""
        self._first_token.observe(seconds)
        self._batch.next_size.observe(self._engine.stats().num_running)

    def next_tokens(self, count: int, seconds: float) -> None:
        """So many tokens come together, so long after the one before."""
        for _ in range(count):
            self._next_token.observe(seconds / count)

    def engine_failed(self, *, has_begun: bool) -> None:
        """The engine ended a request with an error, before or after its first token."""
        self._batch.failed(_DECODE if has_begun else _PREFILL)

    def answered(self, engine_times: RequestTimes, times: InferenceTimes) -> None:
        """An answer is complete; a request with `best_of` has several."""
        self._batch.finished(engine_times, times)

    def finished(self, times: InferenceTimes) -> None:
        """A request was answered to its end."""
        self._success.inc()
        self._duration.observe(times.finished - times.start)
        self._validation.observe(times.validated - times.start)
        self._queue.observe(times.queued_until - times.validated)
        self._inference.observe(times.inference)
        self._per_token.observe(times.per_token)
        self._generated.observe(times.generated_tokens)
        self._skipped.observe(0)

    def page(self) -> str:
        """The text of `/metrics`."""
        return exposition(self._registry)


class _BatchMetrics:
    """TGI's figures of its batches. The engine has steps, which are no prefill and no decode: a request's way to its
    first token stands for a prefill, and its mean step afterwards for a decode, one observation a request."""

    def __init__(
        self,
        seconds: Callable[..., Histogram],
        numbers: Callable[[str, str, list[float]], Histogram],
        registry: CollectorRegistry,
    ) -> None:
        self.next_size = numbers(
            "tgi_batch_next_size", "Requests in a batch.", [float(n + 1) for n in range(1024)]
        )
        self._count = Counter("tgi_batch_inference_count", "Steps.", ["method"], registry=registry)
        self._success = Counter("tgi_batch_inference_success", "Steps done.", ["method"], registry=registry)
        self._failure = Counter("tgi_batch_inference_failure", "Steps failed.", ["method"], registry=registry)
        self._inference = seconds("tgi_batch_inference_duration", "Seconds of a step.", "method")
        self._forward = seconds("tgi_batch_forward_duration", "Seconds of a step in the model.", "method")
        # Parts of TGI's steps that the engine has no counterpart of: they took no time.
        self._filter = seconds(
            "tgi_batch_filter_duration", "Seconds to drop requests from a batch.", "method"
        )
        self._decode = seconds(
            "tgi_batch_decode_duration", "Seconds to turn a batch's tokens into text.", "method"
        )

    def finished(self, engine_times: RequestTimes, times: InferenceTimes) -> None:
        self._observe(_PREFILL, 1, engine_times.first_token - engine_times.first_scheduled)
        steps = times.generated_tokens - 1
        if steps:
            self._observe(_DECODE, steps, (times.finished - engine_times.first_token) / steps)

    def failed(self, method: str) -> None:
        self._count.labels(method).inc()
        self._failure.labels(method).inc()

    def _observe(self, method: str, steps: int, seconds: float) -> None:
        self._count.labels(method).inc(steps)
        self._success.labels(method).inc(steps)
        self._inference.labels(method).observe(seconds)
        self._forward.labels(method).observe(seconds)
        self._filter.labels(method).observe(0)
        self._decode.labels(method).observe(0)
