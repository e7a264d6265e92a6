"""The tensors of Triton's vLLM backend, and what they mean."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pageport.backends.triton_python.contract import Ask, ContractName, TensorSpec, UnsupportedRequestError
from pageport.backends.triton_python.inputs import Inputs
from pageport.backends.triton_python.request_parameters import (
    parse_json_object,
    pop_service_class,
    read_request_parameters,
    read_sampling,
)
from pageport.core import InvalidRequestError, RequestOutput

_EXTRAS = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
_FLAGS = ("stream", "exclude_input_in_output", *(f"return_{name}" for name in _EXTRAS))


class VllmContract:
    """text_input (and JSON sampling parameters) in, text deltas out."""

    name = ContractName.VLLM
    decoupled = True
    inputs: tuple[TensorSpec, ...] = (
        TensorSpec("text_input", "TYPE_STRING", (1,)),
        TensorSpec("image", "TYPE_STRING", (-1,), optional=True),
        TensorSpec("sampling_parameters", "TYPE_STRING", (1,), optional=True),
        *(TensorSpec(name, "TYPE_BOOL", (1,), optional=True) for name in _FLAGS),
    )
    outputs: tuple[TensorSpec, ...] = (
        TensorSpec("text_output", "TYPE_STRING", (-1,)),
        TensorSpec("finish_reason", "TYPE_STRING", (-1,)),
        TensorSpec("cumulative_logprob", "TYPE_FP32", (-1,)),
        TensorSpec("logprobs", "TYPE_STRING", (-1,)),
        TensorSpec("num_input_tokens", "TYPE_UINT32", (1,)),
        TensorSpec("num_output_tokens", "TYPE_UINT32", (-1,)),
    )

    def __init__(self, stream_interval: int = 1) -> None:
        self._stream_interval = stream_interval

    def read(self, request: Any) -> Ask:
        inputs = Inputs(request)
        prompt = inputs.text("text_input")
        if not prompt:
            raise InvalidRequestError("text_input", "is empty; at least one token is needed")
        if "image" in inputs:
            raise UnsupportedRequestError("image", "images are not supported by this server")
        streams = bool(inputs.flag("stream"))
        excludes_input = inputs.flag("exclude_input_in_output")
        if streams and excludes_input is False:
            raise InvalidRequestError("exclude_input_in_output", "must not be false when streaming")
        parameters = read_request_parameters(request)
        service_class = pop_service_class(parameters)
        sampling_text = inputs.optional_text("sampling_parameters")
        if sampling_text is not None:
            parameters = parse_json_object("sampling_parameters", sampling_text)
        sampling = read_sampling(parameters)
        extras = frozenset(name for name in _EXTRAS if inputs.flag(f"return_{name}"))
        returns_logprobs = sampling.logprobs is not None
        if "cumulative_logprob" in extras and not returns_logprobs:
            # The engine adds up log-probabilities only where it computes them.
            sampling = dataclasses.replace(sampling, logprobs=0)
        prefix = "" if streams or excludes_input else prompt
        sequences = [_Sequence(prefix) for _ in range(sampling.n)]
        interval = self._stream_interval if streams else None
        return Ask(prompt, sampling, service_class, VllmReply(sequences, extras, returns_logprobs, interval))


@dataclass(slots=True)
class _Sequence:
    """What one of the request's sequences has to tell."""

    text: str
    finish_reason: str = "None"
    cumulative_logprob: float = 0.0
    logprobs: list[dict[int, dict[str, Any]]] = field(default_factory=list)
    num_tokens: int = 0


class VllmReply:
    """One response has one element per sequence; texts, log-probabilities and token counts are deltas.

    Args:
        extras: names of the optional outputs that the client wants.
        returns_logprobs: whether it also asked for log-probabilities to be computed.
        stream_interval: tokens between two responses; None: one response at the end.
    """

    def __init__(
        self,
        sequences: list[_Sequence],
        extras: frozenset[str],
        returns_logprobs: bool,
        stream_interval: int | None,
    ) -> None:
        self.streams = stream_interval is not None
        self._interval = stream_interval or 1
        self._due = 1
        self._sequences = sequences
        self._extras = extras
        self._returns_logprobs = returns_logprobs
        self._num_input_tokens = 0

    def add(self, output: RequestOutput) -> None:
        sequence = self._sequences[output.index]
        sequence.text += output.text
        sequence.num_tokens += len(output.token_ids)
        sequence.cumulative_logprob = output.cumulative_logprob
        self._num_input_tokens = output.num_prompt_tokens
        if output.finish_reason is not None:
            sequence.finish_reason = str(output.finish_reason)
        if self._returns_logprobs and output.logprobs is not None:
            for position in output.logprobs:
                sequence.logprobs.append({token: value._asdict() for token, value in position.items()})

    @property
    def has_news(self) -> bool:
        # Text can be held back while tokens come: counts and log-probabilities wait with it.
        return any(s.text and s.num_tokens >= self._due for s in self._sequences)

    def take(self) -> list[Any]:
        tensors = [_strings("text_output", [sequence.text for sequence in self._sequences])]
        tensors += [self._extra(name) for name in _EXTRAS if name in self._extras]
        self._due = self._interval
        for sequence in self._sequences:
            sequence.text = ""
            sequence.logprobs = []
            sequence.num_tokens = 0
        return tensors

    def _extra(self, name: str) -> Any:
        sequences = self._sequences
        match name:
            case "finish_reason":
                return _strings(name, [sequence.finish_reason for sequence in sequences])
            case "logprobs":
                return _strings(name, [self._logprobs_json(sequence) for sequence in sequences])
            case "cumulative_logprob":
                return pb_utils.Tensor(name, np.array([s.cumulative_logprob for s in sequences], np.float32))
            case "num_input_tokens":
                return pb_utils.Tensor(name, np.array([self._num_input_tokens], np.uint32))
            case _:
                return pb_utils.Tensor(name, np.array([s.num_tokens for s in sequences], np.uint32))

    def _logprobs_json(self, sequence: _Sequence) -> str:
        return json.dumps(sequence.logprobs) if self._returns_logprobs else "null"


def _strings(name: str, texts: list[str]) -> Any:
    # Encoded here: the stub would otherwise call back into Python for each element.
    return pb_utils.Tensor(name, np.array([text.encode() for text in texts], np.object_))
