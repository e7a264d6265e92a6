"""The paged engine. This module is its public face; everything else in the package is private to it.

Names load on first use, so that an adapter that only talks to an engine process never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageport.core.assets import TRITON_SERVER_WHEEL, WheelAsset, fetch_wheel
    from pageport.core.chat import render_chat
    from pageport.core.client_protocol import EngineClientProtocol
    from pageport.core.config import EngineConfig, KernelBackend, parse_engine_config
    from pageport.core.demo_model import demo_gguf_path, demo_model_path, resolve_model
    from pageport.core.engine import Engine
    from pageport.core.engine_client import EngineClient
    from pageport.core.errors import (
        ConfigError,
        EngineDeadError,
        InvalidRequestError,
        ModelError,
        PageportError,
        RequestTimeoutError,
    )
    from pageport.core.metrics import EngineInfo, EngineStats
    from pageport.core.request import (
        EngineRequest,
        FinishReason,
        Logprob,
        PositionLogprobs,
        RequestOutput,
        RequestTimes,
        SequenceProgress,
        ServiceClass,
    )
    from pageport.core.sampling_modes import GrammarKind, LogprobsMode, PenaltyStyle, StopMatch
    from pageport.core.sampling_params import (
        Grammar,
        SamplingParams,
        Watermark,
        parse_sampling_params,
    )
    from pageport.core.tokenizer import load_tokenizer

_HOMES = {
    "ConfigError": "errors",
    "Engine": "engine",
    "EngineClient": "engine_client",
    "EngineClientProtocol": "client_protocol",
    "EngineConfig": "config",
    "EngineDeadError": "errors",
    "EngineInfo": "metrics",
    "EngineRequest": "request",
    "EngineStats": "metrics",
    "FinishReason": "request",
    "Grammar": "sampling_params",
    "GrammarKind": "sampling_modes",
    "InvalidRequestError": "errors",
    "KernelBackend": "config",
    "Logprob": "request",
    "LogprobsMode": "sampling_modes",
    "ModelError": "errors",
    "PageportError": "errors",
    "PenaltyStyle": "sampling_modes",
    "PositionLogprobs": "request",
    "RequestOutput": "request",
    "RequestTimeoutError": "errors",
    "RequestTimes": "request",
    "SamplingParams": "sampling_params",
    "SequenceProgress": "request",
    "ServiceClass": "request",
    "StopMatch": "sampling_modes",
    "TRITON_SERVER_WHEEL": "assets",
    "Watermark": "sampling_params",
    "WheelAsset": "assets",
    "demo_gguf_path": "demo_model",
    "demo_model_path": "demo_model",
    "fetch_wheel": "assets",
    "load_tokenizer": "tokenizer",
    "parse_engine_config": "config",
    "parse_sampling_params": "sampling_params",
    "render_chat": "chat",
    "resolve_model": "demo_model",
}

__all__ = [
    "TRITON_SERVER_WHEEL",
    "ConfigError",
    "Engine",
    "EngineClient",
    "EngineClientProtocol",
    "EngineConfig",
    "EngineDeadError",
    "EngineInfo",
    "EngineRequest",
    "EngineStats",
    "FinishReason",
    "Grammar",
    "GrammarKind",
    "InvalidRequestError",
    "KernelBackend",
    "Logprob",
    "LogprobsMode",
    "ModelError",
    "PageportError",
    "PenaltyStyle",
    "PositionLogprobs",
    "RequestOutput",
    "RequestTimeoutError",
    "RequestTimes",
    "SamplingParams",
    "SequenceProgress",
    "ServiceClass",
    "StopMatch",
    "Watermark",
    "WheelAsset",
    "demo_gguf_path",
    "demo_model_path",
    "fetch_wheel",
    "load_tokenizer",
    "parse_engine_config",
    "parse_sampling_params",
    "render_chat",
    "resolve_model",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
