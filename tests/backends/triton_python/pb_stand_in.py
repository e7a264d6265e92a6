"""A stand-in for the module that Triton's stub provides, for tests without a server.

Only what the adapter uses, and only its observable face; the tests marked `server` run against the real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonModelException(Exception):
    pass


class TritonError:
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Tensor:
    def __init__(self, name: str, values: np.ndarray) -> None:
        self._name, self._values = name, values

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._values


class InferenceResponse:
    def __init__(self, output_tensors: Sequence[Tensor], error: TritonError | None = None) -> None:
        self.output_tensors, self.error = list(output_tensors), error


class Logger:
    lines: list[str] = []  # noqa: RUF012 (as global as the real one)
    log_info = log_warn = log_error = lines.append


class _Metric:
    def __init__(self, labels: dict[str, str], buckets: Sequence[float] = ()) -> None:
        self.labels, self.buckets, self.value, self.observed = labels, buckets, 0.0, []

    def increment(self, amount: float) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value

    def observe(self, value: float) -> None:
        self.observed.append(value)


class MetricFamily:
    COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
    by_name: dict[str, list[_Metric]] = {}  # noqa: RUF012 (as global as the real one)

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.metrics = self.by_name.setdefault(name, [])

    def Metric(self, **arguments: Any) -> _Metric:
        self.metrics.append(_Metric(**arguments))
        return self.metrics[-1]


class Request:
    """An `InferenceRequest`; inputs as {name: elements}."""

    def __init__(self, inputs: dict[str, Any], parameters: str = "", timeout_us: int = 0) -> None:
        self._tensors = [Tensor(name, _array(values)) for name, values in inputs.items()]
        self._parameters, self._timeout_us = parameters, timeout_us
        self.sender = Sender()

    def inputs(self) -> list[Tensor]:
        return self._tensors

    def parameters(self) -> str:
        return self._parameters

    def timeout(self) -> int:
        return self._timeout_us

    def get_response_sender(self) -> Sender:
        return self.sender


class Sender:
    """An `InferenceResponseSender` that keeps what it is given, and refuses more after the final response."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.cancelled = self.final = False

    def send(self, response: InferenceResponse, flags: int = 0) -> None:
        if self.final:
            raise TritonModelException("a response was sent after the final one")
        self.responses.append(response)
        self.final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL

    def is_cancelled(self) -> bool:
        return self.cancelled


def _array(values: Any) -> np.ndarray:
    if isinstance(values, np.ndarray):
        return values
    values = values if isinstance(values, list) else [values]
    if isinstance(values[0], bool):
        return np.array(values)
    return np.array([v.encode() if isinstance(v, str) else v for v in values], np.object_)
