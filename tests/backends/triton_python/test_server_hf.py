"""The hf contract through a real Triton server: one request, one answer, over every protocol."""

from __future__ import annotations

import asyncio

import pytest
import tritonclient.grpc.aio as grpc_aio
from triton_harness import Harness, to_input, to_list
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.server


def test_generate_returns_prompt_and_continuation_of_the_configured_total_length(fake: Harness) -> None:
    """The entry's max_output_length is 8 tokens: 3 of the prompt, 5 new ones."""
    assert fake.generate("hf", {"text_input": "w1 w2 w3"})["text_output"] == "w1 w2 w3 a0 a1 a2 a3 a4"


async def test_unary_calls_overlap(fake: Harness) -> None:
    async with grpc_aio.InferenceServerClient(fake.server.grpc_url) as client:
        prompts = [" ".join(["w1"] * length) for length in range(1, 8)]
        results = await asyncio.gather(
            *(client.infer("hf", [to_input("text_input", prompt)]) for prompt in prompts)
        )
    answers = [to_list(result.as_numpy("text_output")) for result in results]
    assert answers == [
        [prompt + "".join(f" a{k}" for k in range(8 - n))] for n, prompt in enumerate(prompts, 1)
    ]


@pytest.mark.parametrize(
    ("prompt", "field"),
    [("", "text_input"), (b"\xff", "text_input"), ("w1 " * 8, "max_output_length")],
)
async def test_bad_prompts_are_refused(fake: Harness, prompt: str | bytes, field: str) -> None:
    async with grpc_aio.InferenceServerClient(fake.server.grpc_url) as client:
        with pytest.raises(InferenceServerException, match=field) as caught:
            await client.infer("hf", [to_input("text_input", prompt)])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


async def test_request_parameters_change_the_sampling(fake: Harness) -> None:
    async with grpc_aio.InferenceServerClient(fake.server.grpc_url) as client:
        inputs = [to_input("text_input", "w1")]
        result = await client.infer("hf", inputs, parameters={"max_tokens": "2", "n": 2})
    assert to_list(result.as_numpy("text_output")) == ["w1 a0 a1", "w1 b0 b1"]
