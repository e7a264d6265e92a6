"""Spans of a request: the client's trace goes on, with the parts of the work below it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from router_harness import recorded_settings
from scripted_engine import ScriptedEngine
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.generation import TokenSpeller
from pageport.backends.tgi_adapter.router.engine_inference import EngineInference
from pageport.backends.tgi_adapter.router.errors import RouterError
from pageport.backends.tgi_adapter.router.inference import GenerateInput
from pageport.backends.tgi_adapter.router.metrics import RouterMetrics
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters
from pageport.backends.tgi_adapter.router.tracing import RequestTracer
from pageport.backends.tgi_adapter.router.validation import Validator

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def request(**parameters: object) -> GenerateInput:
    return GenerateInput(
        inputs="What is Deep Learning?",
        parameters=GenerateParameters.model_validate(parameters),
        start=1.0,
        route="generate_stream",
        stream=True,
        trace_context={"traceparent": f"00-{TRACE}-{PARENT}-01"},
    )


async def spans_of(tokenizer: Tokenizer, sent: GenerateInput) -> Sequence[ReadableSpan]:
    """What is exported for one request, refused or answered."""
    exporter = InMemorySpanExporter()
    tracer = RequestTracer("router", exporter)
    settings, engine = recorded_settings(), ScriptedEngine(tokenizer)
    validator = Validator(settings, tokenizer)
    inference = EngineInference(
        settings, engine, TokenSpeller(tokenizer), validator, RouterMetrics(settings, engine), tracer
    )
    try:
        async with inference.open(sent) as answer:
            async for _ in answer.events:
                pass
    except RouterError:
        pass
    finally:
        validator.close()
        tracer.close()
    return exporter.get_finished_spans()


async def test_an_answer(tokenizer: Tokenizer) -> None:
    spans = {span.name: span for span in await spans_of(tokenizer, request(max_new_tokens=4, seed=7))}
    assert set(spans) == {"generate_stream", "validate", "queue", "inference"}
    server = spans.pop("generate_stream")
    assert server.kind is SpanKind.SERVER
    assert server.parent is not None
    assert (f"{server.context.trace_id:032x}", f"{server.parent.span_id:016x}") == (TRACE, PARENT)
    assert server.attributes is not None
    attributes = dict(server.attributes)
    assert (attributes["prompt_tokens"], attributes["generated_tokens"], attributes["seed"]) == (5, 4, "7")
    assert attributes["time_per_token"] == pytest.approx(float(str(attributes["inference_time"])) / 4)
    assert server.resource.attributes["service.name"] == "router"
    for child in spans.values():
        assert child.parent is not None
        assert child.parent.span_id == server.context.span_id
    ends = [spans[name].end_time for name in ("validate", "queue")]
    assert ends == [spans[name].start_time for name in ("queue", "inference")]
    assert server.start_time == spans["validate"].start_time
    assert server.end_time == spans["inference"].end_time


async def test_a_refusal(tokenizer: Tokenizer) -> None:
    (span,) = await spans_of(tokenizer, request(top_k=0))
    assert span.status.status_code is StatusCode.ERROR
    assert "top_k" in str(span.status.description)
    assert span.attributes is not None
    assert span.attributes["error.type"] == "validation"
    assert f"{span.context.trace_id:032x}" == TRACE


class Collector(TraceServiceServicer):
    """An OTLP endpoint that remembers the names of the spans it was sent."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.names += [span.name for span in scope.spans]
        return ExportTraceServiceResponse()


def test_an_endpoint_is_sent_the_spans() -> None:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        tracer = RequestTracer.to_endpoint("router", f"http://127.0.0.1:{port}")
        tracer.failed(request(), "validation", "top_k: must be above 0")
        tracer.close()
    finally:
        server.stop(None).wait()
    assert collector.names == ["generate_stream"]
