"""Our decoder against transformers, in float32 with random weights: every family, every rope variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pageport.core.model.llama import LlamaForCausalLM
from pageport.core.model.loader import load_model
from pageport.kernels import RaggedBatch, make_kernels

BLOCK_SIZE = 4
CPU = torch.device("cpu")
# Both sides accumulate float32 sums of at most 64 products, in different orders.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROPE = {"rope_theta": 1000.0, "rope_type": "default"}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": ROPE}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True}),
    "llama_bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama_head_dim": ("Llama", {"head_dim": 16}),
    "llama_linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "llama_llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama_yarn": ("Llama", {"rope_parameters": YARN}),
    "llama_yarn_mscale": ("Llama", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2}}),
    "llama_mha": ("Llama", {"num_key_value_heads": 4}),
    "mistral_window": ("Mistral", {"sliding_window": 7}),
    "mistral_no_window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2_window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
}


def save_random_model(folder: Path, family: str, **saving: Any) -> Any:
    """A random model of a family in `folder`; returns transformers' own."""
    name, extra = FAMILIES[family]
    torch.manual_seed(len(family))
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **extra})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        # Biases and norms begin as zeros and ones: a weight that is not read would go unseen.
        parameter.data.normal_(0.0, 0.2).add_(0.3 if parameter.dim() == 1 else 0.0)
    model.save_pretrained(folder, **saving)
    return model


def load(folder: Path, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    return load_model(folder, dtype=dtype, device=CPU, kernels=make_kernels("reference", CPU))


class Cache:
    """Blocks dealt out in a scrambled order, one table a sequence."""

    def __init__(self, model: LlamaForCausalLM, num_seqs: int, dtype: torch.dtype = torch.float32) -> None:
        config, per_seq = model.config, SIZES["max_position_embeddings"] // BLOCK_SIZE
        shape = (num_seqs * per_seq, config.num_layers, 2, BLOCK_SIZE, config.num_kv_heads, config.head_dim)
        self.layers = list(torch.full(shape, float("nan"), dtype=dtype).unbind(1))
        order = np.random.default_rng(0).permutation(num_seqs * per_seq)
        self.tables = order.reshape(num_seqs, per_seq).astype(np.int32)

    def batch(self, computed: list[int], new: list[int]) -> RaggedBatch:
        """The ragged batch of all sequences, decodes first as the caller has ordered them."""
        positions = [p for done, count in zip(computed, new, strict=True) for p in range(done, done + count)]
        owners = [seq for seq, count in enumerate(new) for _ in range(count)]
        slots = [
            int(self.tables[seq, p // BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE
            for seq, p in zip(owners, positions, strict=True)
        ]
        lengths = [done + count for done, count in zip(computed, new, strict=True)]
        return RaggedBatch(
            query_start_loc=torch.tensor([0, *np.cumsum(new)], dtype=torch.int32),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_tables=torch.from_numpy(self.tables),
            positions=torch.tensor(positions),
            slot_mapping=torch.tensor(slots),
            num_decodes=sum(count == 1 for count in new),
            query_lens_host=tuple(new),
            seq_lens_host=tuple(lengths),
        )


def truth(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_chunks_and_decodes_in_one_batch_equal_transformers(tmp_path: Path, family: str) -> None:
    reference = save_random_model(tmp_path, family)
    ours = load(tmp_path)
    sequences = torch.randint(3, 96, (3, 30), generator=torch.Generator().manual_seed(1)).tolist()
    cache = Cache(ours, 3)
    # Each step lists (computed, new) of every sequence: whole prompts, a chunk beside a decode, decodes alone.
    steps = [
        ([0, 0, 0], [5, 12, 9]),
        ([5, 12, 9], [1, 6, 11]),
        ([6, 18, 20], [1, 1, 2]),
        ([7, 19, 22], [1, 1, 1]),
    ]
    for computed, new in steps:
        chunks = [tokens[done : done + n] for tokens, done, n in zip(sequences, computed, new, strict=True)]
        ids = torch.tensor([token for chunk in chunks for token in chunk])
        logits = ours.compute_logits(ours.forward(ids, cache.layers, cache.batch(computed, new)))
        expected = torch.cat(
            [
                truth(reference, tokens[: done + n])[done:]
                for tokens, done, n in zip(sequences, computed, new, strict=True)
            ]
        )
        torch.testing.assert_close(logits, expected, **TOLERANCE)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    save_random_model(tmp_path, "llama")
    tokens = torch.randint(3, 96, (20,), generator=torch.Generator().manual_seed(2))
    outputs = []
    for dtype in (torch.float32, torch.bfloat16):
        model = load(tmp_path, dtype)
        cache = Cache(model, 1, dtype)
        outputs.append(model.compute_logits(model.forward(tokens, cache.layers, cache.batch([0], [20]))))
    assert outputs[1].dtype is torch.float32
    # bf16 keeps 8 bits; four layers let relative errors of 2^-8 grow a few times.
    error = (outputs[1] - outputs[0]).norm() / outputs[0].norm()
    assert 0 < error < 0.03


def test_sharded_weights_are_read_from_every_file(tmp_path: Path) -> None:
    reference = save_random_model(tmp_path, "llama", max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    ours = load(tmp_path)
    cache = Cache(ours, 1)
    tokens = [5, 6, 7, 8]
    logits = ours.compute_logits(ours.forward(torch.tensor(tokens), cache.layers, cache.batch([0], [4])))
    torch.testing.assert_close(logits, truth(reference, tokens), **TOLERANCE)
