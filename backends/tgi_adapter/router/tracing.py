"""Requests as OpenTelemetry spans, written when they are over, so that a running stream costs nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pageport.backends.tgi_adapter.router.inference import GenerateInput, InferenceTimes, ValidRequest


class RequestTracer:
    """One server span a request, as a child of the client's; below it validation, queue and inference."""

    def __init__(self, service_name: str, exporter: SpanExporter) -> None:
        self._provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service_name}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("pageport.tgi_adapter")
        self._propagator: TextMapPropagator = TraceContextTextMapPropagator()

    @classmethod
    def to_endpoint(cls, service_name: str, endpoint: str) -> RequestTracer:
        """Spans go to an OTLP collector, by gRPC."""
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return cls(
            service_name, OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https"))
        )

    def finished(self, request: GenerateInput, valid: ValidRequest, times: InferenceTimes) -> None:
        """A request was answered to its end. Times in the attributes are seconds."""
        clock = _Clock()
        attributes: dict[str, str | int | float] = {
            "total_time": times.finished - times.start,
            "validation_time": times.validated - times.start,
            "queue_time": times.queued_until - times.validated,
            "inference_time": times.inference,
            "time_per_token": times.per_token,
            "seed": str(valid.parameters.seed),
            "prompt_tokens": valid.input_length,
            "generated_tokens": times.generated_tokens,
            "service_class": request.service_class.value,
        }
        span = self._server_span(request, clock.at(times.start), attributes)
        inside = set_span_in_context(span)
        self._child("validate", inside, clock.at(times.start), clock.at(times.validated))
        self._child("queue", inside, clock.at(times.validated), clock.at(times.queued_until))
        self._child("inference", inside, clock.at(times.queued_until), clock.at(times.finished))
        span.end(clock.at(times.finished))

    def failed(self, request: GenerateInput, error_type: str, message: str) -> None:
        """A request was refused, or came to nothing."""
        clock = _Clock()
        span = self._server_span(request, clock.at(request.start), {"error.type": error_type})
        span.set_status(Status(StatusCode.ERROR, message))
        span.end()

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    def _server_span(
        self, request: GenerateInput, start: int, attributes: Mapping[str, str | int | float]
    ) -> Span:
        parent = self._propagator.extract(request.trace_context, context=Context())
        return self._tracer.start_span(
            request.route, parent, kind=SpanKind.SERVER, attributes=attributes, start_time=start
        )

    def _child(self, name: str, parent: Context, start: int, end: int) -> None:
        self._tracer.start_span(name, parent, start_time=start).end(end)


class _Clock:
    """From `time.monotonic` to the nanoseconds of `time.time_ns`."""

    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def at(self, seconds: float) -> int:
        return self._offset + int(seconds * 1e9)
