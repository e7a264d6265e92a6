"""Decodes with a random Llama where nothing but torch, triton, numpy and transformers can be imported.

    python bare_decode.py CHECKOUT

Run by `test_bare_machine.py`, in a process of its own.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from pathlib import Path

# What a machine that has only torch and transformers lacks.
ABSENT = {
    "click",
    "gguf",
    "hypothesis",
    "llguidance",
    "llvmlite",
    "numba",
    "platformdirs",
    "psutil",
    "pydantic",
}
PROMPTS = [[5], list(range(40, 57)), [9, 8, 7] * 20]
NEW_TOKENS = 12


class Refuse(MetaPathFinder):
    """No module of the absent packages is found."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"{fullname} is refused", name=fullname)


def main(checkout: str) -> None:
    # First, because transformers takes what is there, by its metadata.
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM  # noqa: F401

    for name in [name for name in sys.modules if name.partition(".")[0] in ABSENT]:
        del sys.modules[name]
    sys.meta_path[:] = [
        Refuse(),
        *(finder for finder in sys.meta_path if "editable" not in getattr(finder, "__module__", "")),
    ]
    sys.path[:] = [
        str(Path(checkout, "benchmarks")),
        *(entry for entry in sys.path if not entry.startswith("__editable__")),
    ]

    from decode_loop import DecodeLoop, random_transformers_model, same_weights

    import pageport.kernels
    import pageport.kernels.gpu.kernels

    assert Path(pageport.kernels.__file__).is_relative_to(checkout), pageport.kernels.__file__
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    device = torch.device("cpu")
    theirs = random_transformers_model(config, torch.float32, device)
    kernels = pageport.kernels.make_kernels("reference", device)
    loop = DecodeLoop(
        same_weights(theirs, kernels, torch.float32, device),
        kernels,
        torch.float32,
        device,
        max_num_seqs=3,
        max_model_len=128,
    )
    answers = loop.generate(PROMPTS, NEW_TOKENS)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        whole = theirs.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0,
        )  # fmt: skip
        assert answer == whole[0, len(prompt) :].tolist(), (answer, whole)
    print("equal")


if __name__ == "__main__":
    main(sys.argv[1])
