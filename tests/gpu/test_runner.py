"""A random Llama through scheduler, runner and sampler on a device, against transformers in float32 on the CPU."""

from __future__ import annotations

import pytest
import torch
from decode_loop import DecodeLoop, random_transformers_model, same_weights
from transformers import LlamaConfig, Qwen3Config

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 258, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 1024,
    "initializer_range": 0.15,
}  # fmt: skip
CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}
PROMPT_LENGTHS = [1, 2, 16, 45, 90]
LONG_PROMPT_LENGTHS = [511, 600]
NEW_TOKENS = 10


@pytest.fixture(scope="module", params=CONFIGS)
def theirs(request):
    return random_transformers_model(CONFIGS[request.param](**SIZES), torch.float32, CPU)


@pytest.fixture(scope="module")
def prompts(interpreted):
    generator = torch.Generator().manual_seed(3)
    lengths = PROMPT_LENGTHS if interpreted else PROMPT_LENGTHS + LONG_PROMPT_LENGTHS
    return [torch.randint(3, 258, (length,), generator=generator).tolist() for length in lengths]


@pytest.fixture
def loop_of(theirs, gpu_kernels, device, prompts):
    """A loop in a dtype; its budget cuts the longer prompts."""

    def make(dtype):
        ours = same_weights(theirs, gpu_kernels, dtype, device)
        return DecodeLoop(
            ours, gpu_kernels, dtype, device,
            max_num_seqs=len(prompts), max_model_len=1024, max_num_batched_tokens=64,
        )  # fmt: skip

    return make


def test_greedy_answers_equal_transformers(theirs, loop_of, prompts):
    answers = loop_of(torch.float32).generate(prompts, NEW_TOKENS)
    for prompt, answer in zip(prompts, answers, strict=True):
        whole = theirs.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0,
        )  # fmt: skip
        assert answer == whole[0, len(prompt) :].tolist()
    assert len({tuple(answer) for answer in answers}) == len(answers)


@pytest.mark.parametrize(
    ("dtype", "bound"),
    # Relative error of all logits. bfloat16 keeps 8 bits, float16 11; the layers let 2**-8 grow a few times.
    [(torch.float32, 1e-4), (torch.bfloat16, 0.04), (torch.float16, 0.005)],
    ids=str,
)
def test_logits_stay_near_transformers(theirs, loop_of, prompts, interpreted, dtype, bound):
    if interpreted and dtype is torch.float16:
        pytest.skip("torch has no float16 products on every CPU")
    loop = loop_of(dtype)
    loop.add(prompts[-1], 1, prompt_logits=True)
    chunks = []
    while loop.has_work:
        chunks.append(loop.step()[1].logits.cpu())
    with torch.inference_mode():
        expected = theirs(torch.tensor([prompts[-1]])).logits[0]
    error = (torch.cat(chunks) - expected).norm() / expected.norm()
    assert 0 < error < bound


def test_an_answer_does_not_depend_on_the_company_in_float32(loop_of, prompts):
    together = loop_of(torch.float32).generate(prompts, NEW_TOKENS)
    for prompt, answer in zip(prompts[::2], together[::2], strict=True):
        assert loop_of(torch.float32).generate([prompt], NEW_TOKENS) == [answer]
