"""The vllm contract through a real Triton server, with the fake engine behind it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from triton_harness import Harness

pytestmark = pytest.mark.server


def sampling(**values: Any) -> str:
    return json.dumps(values)


def test_answer_without_streaming_contains_the_prompt(fake: Harness) -> None:
    assert fake.generate("vllm", {"text_input": "w1 w2", "max_tokens": 3})["text_output"] == "w1 w2 a0 a1 a2"


def test_prompt_can_be_excluded(fake: Harness) -> None:
    body = {"text_input": "w1", "max_tokens": 2, "exclude_input_in_output": True}
    assert fake.generate("vllm", body)["text_output"] == " a0 a1"


def test_default_of_max_tokens_is_that_of_vllm(fake: Harness) -> None:
    body = {"text_input": "w1", "return_num_output_tokens": True}
    assert fake.generate("vllm", body)["num_output_tokens"] == 16


async def test_stream_of_deltas_ends_with_a_final_response_that_has_the_last_one(fake: Harness) -> None:
    inputs = {
        "text_input": "w1 w2 w3",
        "stream": True,
        "sampling_parameters": sampling(max_tokens="3", temperature="0.5", top_p="0.9"),
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    answer = await fake.stream("vllm", inputs, enable_empty_final_response=True)
    assert answer.error is None
    assert answer.responses == [
        {"text_output": [text], "finish_reason": [reason], "num_input_tokens": [3], "num_output_tokens": [1]}
        for text, reason in ((" a0", "None"), (" a1", "None"), (" a2", "length"))
    ]
    assert answer.finals == [False, False, True]


async def test_unary_request_on_a_stream_gets_one_response(fake: Harness) -> None:
    answer = await fake.stream("vllm", {"text_input": "w1"}, parameters={"max_tokens": 2})
    assert (answer.responses, answer.finals) == ([{"text_output": ["w1 a0 a1"]}], [True])


async def test_one_element_a_sequence(fake: Harness) -> None:
    inputs = {
        "text_input": "w1",
        "stream": True,
        "sampling_parameters": sampling(n=3, max_tokens=2),
        "return_num_output_tokens": True,
    }
    answer = await fake.stream("vllm", inputs)
    assert [response["text_output"] for response in answer.responses] == [
        [" a0", " b0", " c0"],
        [" a1", " b1", " c1"],
    ]
    assert [response["num_output_tokens"] for response in answer.responses] == [[1, 1, 1]] * 2


async def test_logprobs_are_json_per_new_token(fake: Harness) -> None:
    inputs = {
        "text_input": "w1",
        "stream": True,
        "sampling_parameters": sampling(max_tokens=2, logprobs=1),
        "return_logprobs": True,
        "return_cumulative_logprob": True,
    }
    answer = await fake.stream("vllm", inputs)
    values = [json.loads(response["logprobs"][0]) for response in answer.responses]
    assert values == [
        [{"0": {"logprob": -0.5, "rank": 1, "decoded_token": " a0"}}],
        [{"1": {"logprob": -0.5, "rank": 1, "decoded_token": " a1"}}],
    ]
    assert [response["cumulative_logprob"] for response in answer.responses] == [[-0.5], [-1.0]]


def test_logprobs_that_were_not_computed_are_null(fake: Harness) -> None:
    body = {"text_input": "w1", "max_tokens": 2, "return_logprobs": True, "return_cumulative_logprob": True}
    answer = fake.generate("vllm", body)
    assert (answer["logprobs"], answer["cumulative_logprob"]) == ("null", -1.0)


BAD_SAMPLING = {
    "max_tokens is 0": (sampling(max_tokens=0), "max_tokens"),
    "max_tokens is negative": (sampling(max_tokens=-3), "max_tokens"),
    "max_tokens is huge": (sampling(max_tokens=10**9), "max_tokens"),
    "max_tokens is beyond 64 bits": (sampling(max_tokens=10**30), "max_tokens"),
    "max_tokens is a word": (sampling(max_tokens="many"), "max_tokens"),
    "max_tokens is a list": (sampling(max_tokens=[1]), "max_tokens"),
    "temperature is negative": (sampling(temperature=-0.1), "temperature"),
    "temperature is not a number": ('{"temperature": NaN}', "temperature"),
    "temperature is nan as text": (sampling(temperature="nan"), "temperature"),
    "temperature is infinite": ('{"temperature": Infinity}', "temperature"),
    "top_p is 0": (sampling(top_p=0), "top_p"),
    "n is too large": (sampling(n=10_000), "n:"),
    "n is 0": (sampling(n=0), "n:"),
    "stop has 1,000 entries": (sampling(stop=[f"s{k}" for k in range(1000)]), "stop"),
    "stop has an empty entry": (sampling(stop=[""]), "stop"),
    "stop holds numbers": (sampling(stop=[1, 2]), "stop"),
    "logprobs is too large": (sampling(logprobs=1000), "logprobs"),
    "unknown name": (sampling(temprature=1), "temprature"),
    "lora_name": (sampling(lora_name="x"), "lora_name"),
    "structured_outputs": (sampling(structured_outputs="{}"), "structured_outputs"),
    "guided_decoding": (sampling(guided_decoding="{}"), "guided_decoding"),
    "beam search": (sampling(use_beam_search=True), "use_beam_search"),
    "not JSON": ("{max_tokens: 3", "sampling_parameters"),
    "not an object": ("[1, 2]", "sampling_parameters"),
    "deeply nested": ("[" * 100_000, "sampling_parameters"),
    "not UTF-8": (b"\xff\xfe", "sampling_parameters"),
}


@pytest.mark.parametrize("case", BAD_SAMPLING)
async def test_bad_sampling_parameters_are_named(fake: Harness, case: str) -> None:
    text, field = BAD_SAMPLING[case]
    answer = await fake.stream("vllm", {"text_input": "w1", "sampling_parameters": text})
    assert answer.error is not None
    assert field in answer.error
    assert answer.responses == []


BAD_INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "empty prompt": ({"text_input": ""}, "text_input"),
    "no prompt": ({"stream": True}, "text_input"),
    "two prompts": ({"text_input": ["w1", "w2"]}, "text_input"),
    "prompt is not UTF-8": ({"text_input": b"w1 \xff"}, "text_input"),
    "prompt longer than the context": ({"text_input": "w1 " * 5000}, "exceed max_model_len"),
    "image": ({"text_input": "w1", "image": "aGk="}, "image"),
    "stream and echo": (
        {"text_input": "w1", "stream": True, "exclude_input_in_output": False},
        "exclude_input_in_output",
    ),
    "unknown input": ({"text_input": "w1", "nonsense": "x"}, "nonsense"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
async def test_bad_inputs_are_named(fake: Harness, case: str) -> None:
    inputs, field = BAD_INPUTS[case]
    answer = await fake.stream("vllm", inputs)
    assert answer.error is not None
    assert field in answer.error


async def test_bad_request_parameters_are_named(fake: Harness) -> None:
    for name, value in (("max_tokens", -1), ("service_class", "express"), ("tempo", 1)):
        answer = await fake.stream("vllm", {"text_input": "w1"}, parameters={name: value})
        assert answer.error is not None
        assert name in answer.error


async def test_service_class_is_a_request_parameter_beside_sampling_parameters(fake: Harness) -> None:
    inputs = {"text_input": "w1", "sampling_parameters": sampling(max_tokens=1)}
    answer = await fake.stream("vllm", inputs, parameters={"service_class": "batch"})
    assert (answer.error, answer.text) == (None, "w1 a0")


def test_an_entry_of_the_vllm_backend_is_served_as_it_is(fake: Harness) -> None:
    """config.pbtxt says only `backend: "vllm"`; the settings are a vLLM model.json."""
    assert fake.generate("bare", {"text_input": "w1", "max_tokens": 2})["text_output"] == "w1 a0 a1"
    log = fake.server.log_path.read_text()
    assert "unknown settings, not used: a_name_nobody_knows" in log
    assert "settings without effect here: disable_log_requests, tensor_parallel_size" in log
