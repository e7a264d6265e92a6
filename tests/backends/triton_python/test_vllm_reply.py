"""What gathers in a reply between two responses, on a stand-in for Triton's tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest
import triton_python_backend_utils as stand_in

from pageport.backends.triton_python.contract import Reply, UnsupportedRequestError
from pageport.backends.triton_python.vllm_contract import VllmContract
from pageport.core import FinishReason, InvalidRequestError, Logprob, RequestOutput, ServiceClass

EXTRAS = ("finish_reason", "logprobs", "cumulative_logprob", "num_input_tokens", "num_output_tokens")


def reply(**sampling: Any) -> Reply:
    inputs = {"text_input": "prompt", "stream": True, "sampling_parameters": json.dumps(sampling)}
    flags = {f"return_{name}": True for name in EXTRAS}
    return VllmContract().read(stand_in.Request({**inputs, **flags})).reply


def taken(reply: Reply) -> dict[str, list[Any]]:
    return {tensor.name(): tensor.as_numpy().tolist() for tensor in reply.take()}


def output(text: str, tokens: list[int], index: int = 0, **more: Any) -> RequestOutput:
    logprobs = [{token: Logprob(-1.0, 1, f"t{token}")} for token in tokens]
    return RequestOutput("r", index, text, tokens, logprobs=logprobs, num_prompt_tokens=4, **more)


def test_counts_wait_for_text_that_is_held_back() -> None:
    gathered = reply(logprobs=0)
    gathered.add(output("", [5]))
    assert not gathered.has_news
    gathered.add(output("né", [6]))
    assert gathered.has_news
    first = taken(gathered)
    assert (first["text_output"], first["num_output_tokens"]) == (["né".encode()], [2])
    assert [list(position) for position in json.loads(first["logprobs"][0])] == [["5"], ["6"]]
    assert not gathered.has_news
    gathered.add(output("", [7], finish_reason=FinishReason.STOP, request_finished=True))
    last = taken(gathered)
    assert (last["text_output"], last["num_output_tokens"]) == ([b""], [1])
    assert last["finish_reason"] == [b"stop"]


def test_a_finished_sequence_keeps_its_place_and_reason() -> None:
    gathered = reply(n=2)
    gathered.add(output("a", [1], 0, finish_reason=FinishReason.STOP))
    gathered.add(output("b", [1], 1))
    assert taken(gathered)["finish_reason"] == [b"stop", b"None"]
    gathered.add(output("c", [2], 1, finish_reason=FinishReason.LENGTH))
    second = taken(gathered)
    assert second["text_output"] == [b"", b"c"]
    assert second["finish_reason"] == [b"stop", b"length"]
    assert second["num_output_tokens"] == [0, 1]


def test_element_types_are_those_of_the_contract() -> None:
    gathered = reply()
    gathered.add(output("a", [1], cumulative_logprob=-2.5))
    types = {tensor.name(): str(tensor.as_numpy().dtype) for tensor in gathered.take()}
    assert types == {
        "text_output": "object",
        "finish_reason": "object",
        "logprobs": "object",
        "cumulative_logprob": "float32",
        "num_input_tokens": "uint32",
        "num_output_tokens": "uint32",
    }


def read(inputs: dict[str, Any], parameters: str = "") -> Any:
    return VllmContract().read(stand_in.Request({"text_input": "p", **inputs}, parameters))


def test_request_parameters_serve_only_where_no_sampling_parameters_are_given() -> None:
    parameters = '{"max_tokens": "7", "temperature": "0", "id": "x", "priority": 1, "service_class": "batch"}'
    alone = read({}, parameters)
    assert (alone.sampling.max_tokens, alone.sampling.temperature) == (7, 0.0)
    assert alone.service_class is ServiceClass.BATCH
    both = read({"sampling_parameters": '{"top_k": "5"}'}, parameters)
    assert (both.sampling.max_tokens, both.sampling.top_k) == (16, 5)
    assert both.service_class is ServiceClass.BATCH


def test_names_of_vllm_that_do_nothing_are_accepted_at_their_neutral_value() -> None:
    neutral = '{"best_of": null, "use_beam_search": false, "length_penalty": 1.0, "detokenize": true}'
    assert read({"sampling_parameters": neutral}).sampling.n == 1
    with pytest.raises(UnsupportedRequestError, match="length_penalty"):
        read({"sampling_parameters": '{"length_penalty": 0.5}'})


@pytest.mark.parametrize("flag", ["stream", "exclude_input_in_output", "return_logprobs"])
def test_flags_must_be_booleans_of_one_element(flag: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{flag}: must be a boolean"):
        read({flag: "yes"})
    with pytest.raises(InvalidRequestError, match=f"{flag}: must hold exactly one element"):
        read({flag: [True, False]})
