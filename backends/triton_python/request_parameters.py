"""A request's parameters: Triton hands them to the model as one JSON text, some of its own among them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pageport.backends.triton_python.contract import UnsupportedRequestError
from pageport.backends.triton_python.structured_outputs import read_structured_outputs
from pageport.core import InvalidRequestError, SamplingParams, ServiceClass, parse_sampling_params

SERVICE_CLASS = "service_class"

# Put there by Triton's front ends and clients; they say nothing about sampling.
_SERVER_KEYS = frozenset(
    {
        "binary_data_output",
        "id",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "timeout",
        "triton_enable_empty_final_response",
        "triton_final_response",
    }
)

_NOT_SUPPORTED = ("lora_name",)
_STRUCTURED_OUTPUTS = ("structured_outputs", "guided_decoding")  # the second is its older name

# Names of vLLM's sampling parameters which this engine lacks, with the values at which they do nothing.
_NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": (None, []),
    "best_of": (None, 1),
    "detokenize": (True,),
    "early_stopping": (False,),
    "length_penalty": (1,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (False,),
}


def parse_json_object(field: str, text: str) -> dict[str, Any]:
    """Raises InvalidRequestError, naming `field`, for anything but one JSON object."""
    try:
        values = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRequestError(field, f"is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidRequestError(field, f"must be a JSON object (given: {text:.100})")
    return values


def read_request_parameters(request: Any) -> dict[str, Any]:
    """The parameters that the client set, without those that belong to the server."""
    text = request.parameters()
    if not text:
        return {}
    values = parse_json_object("parameters", text)
    return {name: value for name, value in values.items() if name not in _SERVER_KEYS}


def pop_service_class(parameters: dict[str, Any]) -> ServiceClass:
    """Remove the service class from `parameters`; realtime where there is none."""
    value = parameters.pop(SERVICE_CLASS, ServiceClass.REALTIME)
    try:
        return ServiceClass(value)
    except ValueError:
        choices = " or ".join(ServiceClass)
        raise InvalidRequestError(SERVICE_CLASS, f"must be {choices} (given: {value!r:.100})") from None


def read_sampling(values: Mapping[str, Any]) -> SamplingParams:
    """Sampling parameters in vLLM's names; numbers may be strings.

    Raises:
        UnsupportedRequestError: a feature that this engine does not have.
        InvalidRequestError: an unknown name or a value outside of its limits.
    """
    known = dict(values)
    for name in _NOT_SUPPORTED:
        if known.pop(name, None) is not None:
            raise UnsupportedRequestError(name, "is not supported by this server")
    for name, neutral in _NEUTRAL_VALUES.items():
        if name in known and (value := known.pop(name)) not in neutral:
            raise UnsupportedRequestError(name, f"is not supported by this server (given: {value!r:.100})")
    for name in _STRUCTURED_OUTPUTS:
        if (value := known.pop(name, None)) is not None:
            known["grammar"] = read_structured_outputs(name, value)
    return parse_sampling_params(known)
