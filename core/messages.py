"""What an engine process and its client say to each other, pickled over a private socket pair."""

from __future__ import annotations

from dataclasses import dataclass

from pageport.core.config import EngineConfig
from pageport.core.errors import PageportError
from pageport.core.metrics import EngineInfo, EngineStats
from pageport.core.request import EngineRequest, RequestOutput


@dataclass(frozen=True, slots=True)
class StartEngine:
    """The first message to a new process."""

    config: EngineConfig


@dataclass(frozen=True, slots=True)
class AbortRequest:
    request_id: str


@dataclass(frozen=True, slots=True)
class StopEngine:
    """Leave after the current step."""


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine has loaded its model and serves."""

    info: EngineInfo
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine could not be built, or cannot go on; the process ends."""

    error: PageportError


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request was never queued."""

    request_id: str
    error: PageportError


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """All that one step (or one command) produced, and the figures after it."""

    outputs: list[RequestOutput]
    stats: EngineStats


ToEngine = StartEngine | EngineRequest | AbortRequest | StopEngine
FromEngine = EngineReady | EngineFailed | RequestRefused | StepOutputs
