"""A llama-architecture GGUF file as an ordinary Hugging Face model folder.

The GGUF's own metadata is the truth for special tokens, the chat template and the shape of the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

from pageport.core.errors import ModelError

FloatArray = npt.NDArray[np.float32]

_CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of tokens that are never the tokenizer's own output

# llama.cpp's names of the tensors in a block -> transformers' names in a layer.
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def export_gguf(gguf_path: Path, folder: Path) -> None:
    """Write `config.json`, `generation_config.json`, `tokenizer.json`, `tokenizer_config.json` and
    `model.safetensors` into `folder`.

    Weights are stored in float32: a dequantised value (float16 scale times a small integer) fits no
    16-bit type exactly, and a parity check against the GGUF shall not begin with a rounding.

    Raises:
        ModelError: not a GGUF file, not llama architecture, or a pre-tokenizer other than SmolLM's.
    """
    try:
        reader = GGUFReader(gguf_path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{gguf_path} is no readable GGUF file: {error}") from error
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    for key, supported in (("general.architecture", "llama"), ("tokenizer.ggml.pre", "smollm")):
        if metadata.get(key) != supported:
            raise ModelError(f"{gguf_path}: {key} is {metadata.get(key)!r}; supported: {supported!r}")
    config = model_config(metadata, tied="output.weight" not in {tensor.name for tensor in reader.tensors})
    _write_json(folder / "config.json", config)
    special_ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", special_ids)
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata))
    _write_tokenizer(metadata, folder / "tokenizer.json")
    _write_weights(reader, config, folder / "model.safetensors")


def model_config(metadata: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """The contents of `config.json`. `tied`: the output matrix is the embedding."""
    heads = metadata["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": metadata["llama.rope.dimension_count"],
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": _shortest_float32(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": metadata.get("llama.rope.freq_base", 10000.0),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "vocab_size": metadata["llama.vocab_size"],
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def _shortest_float32(value: float) -> float:
    """1e-05 for 9.999999747378752e-06: the decimal that was meant before it went through float32."""
    return float(str(np.float32(value)))


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": metadata["tokenizer.ggml.add_bos_token"],
        "add_prefix_space": metadata["tokenizer.ggml.add_space_prefix"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["llama.context_length"],
        "chat_template": metadata["tokenizer.chat_template"],
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
    }


def _write_tokenizer(metadata: dict[str, Any], path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    controls = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in controls])
    tokenizer.save(str(path))


def _write_weights(reader: GGUFReader, config: dict[str, Any], path: Path) -> None:
    from safetensors.numpy import save_file

    save_file(dict(hf_weights(reader, config)), path, metadata={"format": "pt"})
    path.chmod(0o644)  # save_file gives it to its owner only


def hf_weights(reader: GGUFReader, config: dict[str, Any]) -> Iterator[tuple[str, FloatArray]]:
    """Each tensor under its transformers name, float32, rows as transformers orders them."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            continue  # derived by transformers from config.json
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        kind = tensor.name.removesuffix(".weight").split(".")[-1]
        if kind in heads:
            values = _unpermute(values, heads[kind])
        yield _hf_name(tensor.name), np.ascontiguousarray(values)


def _unpermute(rows: FloatArray, heads: int) -> FloatArray:
    """Undo llama.cpp's order of query and key rows [heads * D, hidden].

    llama.cpp interleaves each head's two rotary halves (0, D/2, 1, D/2 + 1, …) because it rotates
    neighbours; transformers rotates halves.
    """
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _hf_name(name: str) -> str:
    match name.split("."):
        case ["blk", layer, kind, "weight"] if kind in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.weight"
        case [kind, "weight"] if kind in _OUTER_NAMES:
            return f"{_OUTER_NAMES[kind]}.weight"
    raise ModelError(f"the GGUF holds a tensor that a llama model does not have: {name}")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
