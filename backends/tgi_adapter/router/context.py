"""What the handlers of all routes share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.generation import TokenSpeller
from pageport.backends.tgi_adapter.router.engine_inference import EngineInference
from pageport.backends.tgi_adapter.router.inference import Inference
from pageport.backends.tgi_adapter.router.metrics import RouterMetrics
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.backends.tgi_adapter.router.validation import Validator
from pageport.core import EngineClientProtocol

if TYPE_CHECKING:
    from pageport.backends.tgi_adapter.router.tracing import RequestTracer


@dataclass(frozen=True, slots=True)
class RouterContext:
    """One router.

    Attributes:
        model_folder: where the tokenizer's configuration and the chat template are.
    """

    settings: RouterSettings
    tokenizer: Tokenizer
    model_folder: Path
    validator: Validator
    metrics: RouterMetrics
    tracer: RequestTracer | None
    inference: Inference

    @classmethod
    def build(
        cls, settings: RouterSettings, engine: EngineClientProtocol, tokenizer: Tokenizer, model_folder: Path
    ) -> RouterContext:
        validator = Validator(settings, tokenizer)
        metrics = RouterMetrics(settings, engine)
        tracer: RequestTracer | None = None
        if settings.otlp_endpoint is not None:
            from pageport.backends.tgi_adapter.router.tracing import RequestTracer

            tracer = RequestTracer.to_endpoint(settings.otlp_service_name, settings.otlp_endpoint)
        inference = EngineInference(settings, engine, TokenSpeller(tokenizer), validator, metrics, tracer)
        return cls(settings, tokenizer, model_folder, validator, metrics, tracer, inference)

    def close(self) -> None:
        """When no request is left."""
        self.validator.close()
        if self.tracer is not None:
            self.tracer.close()
