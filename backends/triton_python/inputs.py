"""Reading a request's input tensors: the server checks their declared types, but not that they make sense."""

from __future__ import annotations

from typing import Any

import numpy as np

from pageport.core import InvalidRequestError


class Inputs:
    """The inputs of one `pb_utils.InferenceRequest` by name, each read once and checked on the way."""

    def __init__(self, request: Any) -> None:
        self._tensors = {tensor.name(): tensor for tensor in request.inputs()}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def text(self, name: str) -> str:
        """A required single string. Raises InvalidRequestError: missing, of another shape, or not UTF-8."""
        text = self.optional_text(name)
        if text is None:
            raise InvalidRequestError(name, "this input is required")
        return text

    def optional_text(self, name: str) -> str | None:
        """A single string, or None where the client sent no such input."""
        value = self._single(name)
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, bytes):
            raise InvalidRequestError(name, f"must be a string (given: {value!r:.100})")
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequestError(name, f"is not valid UTF-8: {error}") from None

    def flag(self, name: str) -> bool | None:
        """A single boolean, or None where the client sent no such input."""
        value = self._single(name)
        if value is None:
            return None
        if not isinstance(value, bool | np.bool_):
            raise InvalidRequestError(name, f"must be a boolean (given: {value!r:.100})")
        return bool(value)

    def _single(self, name: str) -> Any:
        tensor = self._tensors.get(name)
        if tensor is None:
            return None
        array = tensor.as_numpy()
        if array.size != 1:
            raise InvalidRequestError(
                name, f"must hold exactly one element (given: shape {list(array.shape)})"
            )
        return array.reshape(-1)[0]
