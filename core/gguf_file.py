"""A GGUF file seen through Hugging Face's names: its configuration, and its tensors dequantised."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor, dequantize

from pageport.core.errors import ModelError

FloatArray = npt.NDArray[np.float32]

# llama.cpp's names of the tensors in a block -> transformers' names in a layer.
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


class GgufFile:
    """Reads a memory-mapped file; its own metadata is the truth for special tokens and the model's shape."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError: no readable GGUF file, an unsupported architecture, or an unknown tensor."""
        self.path = path
        try:
            reader = GGUFReader(path)
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} is no readable GGUF file: {error}") from error
        self.metadata: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self.architecture = self.metadata.get("general.architecture")
        if self.architecture not in _ARCHITECTURES:
            supported = ", ".join(_ARCHITECTURES)
            raise ModelError(f"{path}: general.architecture is {self.architecture!r}; supported: {supported}")
        self._tensors: dict[str, ReaderTensor] = {
            _hf_name(tensor.name): tensor
            for tensor in reader.tensors
            if tensor.name != "rope_freqs.weight"  # derived from the configuration
        }

    def hf_config(self) -> dict[str, Any]:
        """The contents of `config.json`."""
        heads = self._value("attention.head_count")
        head_dim = self._value("attention.key_length", self._value("embedding_length") // heads)
        return {
            "architectures": [_ARCHITECTURES[str(self.architecture)]],
            "model_type": self.architecture,
            "hidden_act": "silu",
            "hidden_size": self._value("embedding_length"),
            "intermediate_size": self._value("feed_forward_length"),
            "num_hidden_layers": self._value("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._value("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": self._value("context_length"),
            "rms_norm_eps": _shortest_float32(self._value("attention.layer_norm_rms_epsilon")),
            "rope_theta": self._value("rope.freq_base", 10000.0),
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "vocab_size": len(self.metadata["tokenizer.ggml.tokens"]),
            "bos_token_id": self.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.metadata.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.metadata.get("tokenizer.ggml.padding_token_id"),
            "torch_dtype": "float32",
        }

    def tensor_names(self) -> Iterable[str]:
        """Hugging Face names of all tensors."""
        return self._tensors

    def read(self, name: str) -> FloatArray:
        """One tensor, float32, rows as transformers orders them."""
        tensor = self._tensors[name]
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        order = self.row_order(name)
        return np.ascontiguousarray(values if order is None else values[order])

    def stored(self, name: str) -> tuple[npt.NDArray[Any], GGMLQuantizationType]:
        """One tensor as the file has it, and its type; quantised ones are uint8 [rows, bytes of a row].

        Rows are in llama.cpp's order; see `row_order`.
        """
        tensor = self._tensors[name]
        return tensor.data, tensor.tensor_type

    def row_order(self, name: str) -> npt.NDArray[np.int64] | None:
        """Which of a tensor's stored rows stands where for transformers; None: all in their places."""
        if self.architecture != "llama" or not name.endswith(("q_proj.weight", "k_proj.weight")):
            return None
        heads = self._value("attention.head_count")
        if ".k_proj." in name:
            heads = self._value("attention.head_count_kv", heads)
        rows = np.arange(len(self._tensors[name].data), dtype=np.int64)
        return _unpermute(rows[:, None], heads)[:, 0]

    def _value(self, key: str, default: Any = None) -> Any:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ModelError(f"{self.path}: the metadata has no {self.architecture}.{key}")
        return value


def _unpermute(rows: npt.NDArray[np.int64], heads: int) -> npt.NDArray[np.int64]:
    """Undo llama.cpp's order of query and key rows [heads * D, hidden].

    llama.cpp interleaves each head's two rotary halves (0, D/2, 1, D/2 + 1, …) because it rotates
    neighbours; transformers rotates halves.
    """
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def _hf_name(name: str) -> str:
    match name.split("."):
        case ["blk", layer, kind, ("weight" | "bias") as part] if kind in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[kind]}.{part}"
        case [kind, "weight"] if kind in _OUTER_NAMES:
            return f"{_OUTER_NAMES[kind]}.weight"
    raise ModelError(f"the GGUF holds a tensor that these models do not have: {name}")


def _shortest_float32(value: float) -> float:
    """1e-05 for 9.999999747378752e-06: the decimal that was meant before it went through float32."""
    return float(str(np.float32(value)))
