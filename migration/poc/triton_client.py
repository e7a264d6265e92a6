"""How each entry is asked, over gRPC, with the unmodified `tritonclient`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from tritonclient.grpc import aio as grpc

from pageport.migration.poc.load import Ask, Piece
from pageport.migration.poc.workload import LoadRequest


def ask_before(client: grpc.InferenceServerClient, entry: str, *, batched: bool) -> Ask:
    """The tutorial contract: one call, one whole answer.

    Args:
        batched: the entry has Triton's batch dimension.
    """
    shape = [1, 1] if batched else [1]

    async def ask(request: LoadRequest) -> AsyncIterator[Piece]:
        inputs = [
            _tensor("text_input", "BYTES", np.array([request.prompt.encode()], np.object_).reshape(shape)),
            _tensor("max_tokens", "INT32", np.array([request.output_tokens], np.int32).reshape(shape)),
        ]
        result = await client.infer(entry, inputs)
        text = result.as_numpy("text_output").reshape(-1)[0].decode()
        ids = tuple(result.as_numpy("output_ids").reshape(-1).tolist())
        yield Piece(text, len(ids), ids)

    return ask


def ask_after(client: grpc.InferenceServerClient, entry: str, *, with_ids: bool = False) -> Ask:
    """The contract of Triton's vLLM backend, streaming.

    Args:
        with_ids: ask for log-probabilities too, which carry the token ids; costs the server some work.
    """

    async def ask(request: LoadRequest) -> AsyncIterator[Piece]:
        async for result, error in client.stream_infer(_one(_vllm_request(entry, request, with_ids))):
            if error is not None:
                raise error
            text = b"".join(result.as_numpy("text_output").reshape(-1).tolist()).decode()
            num_tokens = int(result.as_numpy("num_output_tokens").sum())
            yield Piece(text, num_tokens, _token_ids(result) if with_ids else ())

    return ask


async def _one(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield request


def _vllm_request(entry: str, request: LoadRequest, with_ids: bool) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "temperature": 0.0, "max_tokens": request.output_tokens, "ignore_eos": True,
    }  # fmt: skip
    if with_ids:
        sampling["logprobs"] = 1
    inputs = [
        _tensor("text_input", "BYTES", np.array([request.prompt.encode()], np.object_)),
        _tensor("stream", "BOOL", np.array([True])),
        _tensor("sampling_parameters", "BYTES", np.array([json.dumps(sampling).encode()], np.object_)),
        _tensor("return_num_output_tokens", "BOOL", np.array([True])),
    ]
    if with_ids:
        inputs.append(_tensor("return_logprobs", "BOOL", np.array([True])))
    return {"model_name": entry, "inputs": inputs}


def _token_ids(result: grpc.InferResult) -> tuple[int, ...]:
    """The chosen token of each position; it comes first in its dictionary."""
    positions = json.loads(result.as_numpy("logprobs").reshape(-1)[0]) or []
    return tuple(int(next(iter(position))) for position in positions)


def _tensor(name: str, datatype: str, values: np.ndarray[Any, Any]) -> grpc.InferInput:
    tensor = grpc.InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    return tensor
