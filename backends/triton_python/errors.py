"""Exceptions as Triton's error codes: one table."""

from __future__ import annotations

import asyncio
from typing import Any

import triton_python_backend_utils as pb_utils

from pageport.backends.triton_python.contract import UnsupportedRequestError
from pageport.core import EngineDeadError, InvalidRequestError, RequestTimeoutError


def to_triton_error(error: BaseException) -> Any:
    """The `pb_utils.TritonError` that a client gets for `error`."""
    codes = pb_utils.TritonError
    match error:
        case UnsupportedRequestError():
            return codes(str(error), codes.UNSUPPORTED)
        case InvalidRequestError():
            return codes(str(error), codes.INVALID_ARG)
        case asyncio.CancelledError():
            return codes("the request was cancelled", codes.CANCELLED)
        # Triton has no code for a passed deadline: its own queue answers UNAVAILABLE for a timeout.
        case RequestTimeoutError() | EngineDeadError():
            return codes(str(error), codes.UNAVAILABLE)
        case _:
            return codes(f"{type(error).__name__}: {error}", codes.INTERNAL)
