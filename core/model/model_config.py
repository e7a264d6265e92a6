"""What a decoder of the Llama family looks like, read from a Hugging Face `config.json`."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageport.core.errors import ModelError
from pageport.core.model.rope_config import RopeConfig, parse_rope


class Architecture(enum.StrEnum):
    """The `model_type`s that the decoder can be."""

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    SMOLLM3 = "smollm3"


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """In what one layer may differ from the next."""

    sliding_window: int | None = None
    rotary: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes in numbers of elements; `num_kv_heads` divides `num_heads`."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    layers: tuple[LayerConfig, ...]
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]

    @property
    def num_layers(self) -> int:
        return len(self.layers)


def read_model_config(folder: Path) -> ModelConfig:
    """The configuration of a model folder.

    Raises:
        ModelError: no readable `config.json`, or a model that is not supported.
    """
    return parse_model_config(
        _read_json(folder / "config.json"), _read_json(folder / "generation_config.json", optional=True)
    )


def parse_model_config(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> ModelConfig:
    """Interpret `config.json`; end-of-sequence ids come from `generation_config.json` where it has them.

    Raises:
        ModelError: an architecture, activation or rotary embedding that is not supported; a missing key.
    """
    try:
        architecture = Architecture(config.get("model_type", ""))
    except ValueError:
        supported = ", ".join(Architecture)
        raise ModelError(
            f"model_type {config.get('model_type')!r} is not supported; supported: {supported}"
        ) from None
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(f"hidden_act {config['hidden_act']!r} is not supported; supported: silu")
    try:
        return _build(architecture, config, generation or {})
    except KeyError as error:
        raise ModelError(f"config.json has no {error}") from error


def _build(
    architecture: Architecture, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> ModelConfig:
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    attention_bias = bool(config.get("attention_bias", False))
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    return ModelConfig(
        architecture=architecture,
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        rms_norm_eps=config.get("rms_norm_eps", 1e-6),
        max_position_embeddings=config["max_position_embeddings"],
        rope=parse_rope(config, head_dim),
        layers=_layers(architecture, config),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        # Qwen2 has biases on queries, keys and values only, and no key in its config that says so.
        qkv_bias=attention_bias or architecture is Architecture.QWEN2,
        output_bias=attention_bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=architecture is Architecture.QWEN3,
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
    )


def _layers(architecture: Architecture, config: Mapping[str, Any]) -> tuple[LayerConfig, ...]:
    count = config["num_hidden_layers"]
    window = config.get("sliding_window")
    if architecture is Architecture.LLAMA or not config.get(
        "use_sliding_window", architecture is Architecture.MISTRAL
    ):
        window = None
    types = config.get("layer_types") or _default_layer_types(architecture, config, count)
    rotary = [True] * count
    if architecture is Architecture.SMOLLM3:
        interval = config.get("no_rope_layer_interval", 4)
        # 1 stands for a layer *with* rotary embeddings, whatever the key's name says.
        rotary = [bool(use) for use in config.get("no_rope_layers") or _every_nth_zero(interval, count)]
    return tuple(
        LayerConfig(window if kind == "sliding_attention" else None, rotate)
        for kind, rotate in zip(types, rotary, strict=True)
    )


def _default_layer_types(architecture: Architecture, config: Mapping[str, Any], count: int) -> list[str]:
    """Which layers use the window, in configs written before `layer_types` existed."""
    if architecture is Architecture.MISTRAL:
        return ["sliding_attention"] * count
    first = config.get("max_window_layers", count)
    return ["sliding_attention" if layer >= first else "full_attention" for layer in range(count)]


def _every_nth_zero(interval: int, count: int) -> list[int]:
    return [int((layer + 1) % interval != 0) for layer in range(count)]


def _read_json(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return content
