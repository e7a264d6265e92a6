"""What a client contract is: its tensors, how a request is read, how an answer is put together."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol

from pageport.core import InvalidRequestError, RequestOutput, SamplingParams, ServiceClass


class ContractName(enum.StrEnum):
    """The contracts that a model entry can speak."""

    VLLM = "vllm"
    HF = "hf"


class UnsupportedRequestError(InvalidRequestError):
    """The request is well formed, but asks for a feature that this server does not have."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output as config.pbtxt declares it; `data_type` and `dims` in Triton's own words."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool = False

    def as_input(self) -> dict[str, Any]:
        return {**self.as_output(), "optional": self.optional}

    def as_output(self) -> dict[str, Any]:
        return {"name": self.name, "data_type": self.data_type, "dims": list(self.dims)}


class Reply(Protocol):
    """Gathers one request's outputs until they are sent.

    Attributes:
        streams: send news as they come; otherwise everything once, at the end.
    """

    streams: bool

    def add(self, output: RequestOutput) -> None:
        """Take in what one step added to one sequence."""
        ...

    @property
    def has_news(self) -> bool:
        """Whether the client would see anything new in a response sent now."""
        ...

    def take(self) -> list[Any]:
        """The tensors (`pb_utils.Tensor`) of all that has gathered since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as the engine wants it, with the place where its answer gathers."""

    prompt: str | list[int]
    sampling: SamplingParams
    service_class: ServiceClass
    reply: Reply


class Contract(Protocol):
    """One dialect of clients.

    Attributes:
        decoupled: any number of responses to a request; otherwise exactly one.
    """

    name: ContractName
    decoupled: bool
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def read(self, request: Any) -> Ask:
        """Translate a `pb_utils.InferenceRequest`.

        Raises:
            InvalidRequestError: naming the field; `UnsupportedRequestError` where a feature is missing.
        """
        ...
