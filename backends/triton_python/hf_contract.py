"""The contract of the transformers tutorial model: a text in, the text with its continuation out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from pageport.backends.triton_python.contract import Ask, ContractName, TensorSpec
from pageport.backends.triton_python.inputs import Inputs
from pageport.backends.triton_python.request_parameters import (
    pop_service_class,
    read_request_parameters,
    read_sampling,
)
from pageport.core import InvalidRequestError, RequestOutput


class HfContract:
    """One response a request. Greedy, as a text-generation pipeline is, unless parameters say otherwise.

    Args:
        tokenizer: the model's, to count the prompt's tokens.
        max_output_length: tokens of prompt and continuation together.
    """

    name = ContractName.HF
    decoupled = False
    inputs: tuple[TensorSpec, ...] = (TensorSpec("text_input", "TYPE_STRING", (1,)),)
    outputs: tuple[TensorSpec, ...] = (TensorSpec("text_output", "TYPE_STRING", (-1,)),)

    def __init__(self, tokenizer: Tokenizer, max_output_length: int) -> None:
        self._tokenizer = tokenizer
        self._max_output_length = max_output_length

    def read(self, request: Any) -> Ask:
        prompt = Inputs(request).text("text_input")
        token_ids = self._tokenizer.encode(prompt).ids
        if not token_ids:
            raise InvalidRequestError("text_input", "is empty; at least one token is needed")
        parameters = read_request_parameters(request)
        service_class = pop_service_class(parameters)
        sampling = read_sampling({"temperature": 0.0, **parameters})
        if "max_tokens" not in parameters:
            room = self._max_output_length - len(token_ids)
            if room < 1:
                raise InvalidRequestError(
                    "text_input",
                    f"has {len(token_ids)} tokens, which leaves no room for an answer within "
                    f"max_output_length, {self._max_output_length}",
                )
            sampling = dataclasses.replace(sampling, max_tokens=room)
        return Ask(token_ids, sampling, service_class, HfReply([prompt] * sampling.n))


class HfReply:
    """One element per sequence: the prompt and all that followed."""

    streams = False
    has_news = False

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def add(self, output: RequestOutput) -> None:
        self._texts[output.index] += output.text

    def take(self) -> list[Any]:
        texts = [text.encode() for text in self._texts]
        return [pb_utils.Tensor("text_output", np.array(texts, np.object_))]
