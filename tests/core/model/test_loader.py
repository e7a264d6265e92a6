"""What the loader refuses, and that it says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from pageport.core.errors import ConfigError, ModelError
from pageport.core.model.loader import load_model, load_model_config, resolve_dtype
from pageport.core.model.model_config import Architecture, parse_model_config
from pageport.kernels import make_kernels

CPU = torch.device("cpu")
Weights = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def load(folder: Path) -> None:
    load_model(folder, dtype=torch.float32, device=CPU, kernels=make_kernels("reference", CPU))


def drop_norm(weights: Weights) -> None:
    del weights["model.norm.weight"]


def add_tensor(weights: Weights) -> None:
    weights["model.layers.0.self_attn.sinks"] = torch.zeros(2)


def reshape_down(weights: Weights) -> None:
    weights["model.layers.0.mlp.down_proj.weight"] = torch.zeros(16, 23)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop_norm, "no tensor model.norm.weight"),
        (add_tensor, r"unexpected tensors: model.layers.0.self_attn.sinks \(1 in all\)"),
        (reshape_down, r"down_proj.weight has shape \(16, 23\), the configuration wants \(16, 24\)"),
    ],
)
def test_names_the_tensor_that_is_wrong(
    folder: Path, damage: Callable[[Weights], None], message: str
) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    damage(weights)
    save_file(weights, file)
    with pytest.raises(ModelError, match=message):
        load(folder)


def test_never_opens_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(ModelError, match=r"pickled weights only \(pytorch_model.bin\)"):
        load(folder)


def test_says_what_a_folder_lacks(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 16)
    with pytest.raises(ModelError, match="cannot be read"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors"):
        load(folder)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="names files that are not there: model-00001-of-00002"):
        load(folder)
    with pytest.raises(ModelError, match="there is no model at"):
        load_model_config(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported: llama, mistral"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"vocab_size": None}, "no 'vocab_size'"),
    ],
)
def test_refuses_models_it_would_compute_wrongly(folder: Path, change: dict[str, Any], message: str) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    with pytest.raises(ModelError, match=message):
        load_model_config(folder)


def test_generation_config_decides_on_the_end_of_a_sequence(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert parse_model_config({**config, "eos_token_id": 2}).eos_token_ids == (2,)
    assert parse_model_config({**config, "eos_token_id": 2}, {"eos_token_id": [3, 4]}).eos_token_ids == (3, 4)
    assert parse_model_config({**config, "eos_token_id": None}).eos_token_ids == ()


def test_sizes_of_the_demo_model(demo_model: Path) -> None:
    config = load_model_config(demo_model)
    assert config.architecture is Architecture.LLAMA
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert config.eos_token_ids == (2,) and config.tie_word_embeddings and config.rope.theta == 100000


def test_gguf_and_folder_are_the_same_model(demo_model: Path) -> None:
    from pageport.core import demo_gguf_path
    from pageport.core.model.gguf_source import GgufSource
    from pageport.core.model.weight_source import SafetensorsSource

    gguf = demo_gguf_path()
    assert load_model_config(gguf) == load_model_config(demo_model)
    source = GgufSource(gguf)
    with SafetensorsSource(demo_model) as folder:
        assert set(source.names()) == set(folder.names())
        for name in ("model.layers.3.self_attn.q_proj.weight", "model.layers.29.self_attn.k_proj.weight"):
            assert torch.equal(source.read(name), folder.read(name))


def test_float16_is_refused_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match="float16 is not supported on the CPU"):
        resolve_dtype("float16", CPU)
    assert resolve_dtype("float32", CPU) is torch.float32
    assert resolve_dtype("auto", CPU) in (torch.float32, torch.bfloat16)
