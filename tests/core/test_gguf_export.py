"""A tiny llama, written as llama.cpp's converter writes it, comes back as the model that it was."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from pageport.core.errors import ModelError
from pageport.core.gguf_export import export_gguf

HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 8, 32
TOKENS = ["<|end|>", "<|start|>", "a", "b", "1", "2", "Ġ", "ab", "Ġab"]
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_llama(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def gguf_name(name: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in outer:
        return f"{outer[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.weight"


def interleave_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row by row: a head's row i goes to 2 i, its row D/2 + i to 2 i + 1."""
    permuted = np.empty_like(rows)
    for head in range(heads):
        for i in range(HEAD_DIM // 2):
            permuted[head * HEAD_DIM + 2 * i] = rows[head * HEAD_DIM + i]
            permuted[head * HEAD_DIM + 2 * i + 1] = rows[head * HEAD_DIM + HEAD_DIM // 2 + i]
    return permuted


def write_gguf(model: LlamaForCausalLM, path: Path, *, arch: str = "llama", pre: str = "smollm") -> None:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_uint32("llama.block_count", 2)
    writer.add_uint32("llama.context_length", 64)
    writer.add_uint32("llama.embedding_length", HIDDEN)
    writer.add_uint32("llama.feed_forward_length", 48)
    writer.add_uint32("llama.attention.head_count", HEADS)
    writer.add_uint32("llama.attention.head_count_kv", KV_HEADS)
    writer.add_float32("llama.rope.freq_base", 500.0)
    writer.add_uint32("llama.rope.dimension_count", HEAD_DIM)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_uint32("llama.vocab_size", len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2))
    writer.add_token_merges(["a b", "Ġ ab"])
    for add, token in (
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 0),
        (writer.add_pad_token_id, 0),
        (writer.add_unk_token_id, 0),
    ):
        add(token)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = weight.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = interleave_halves(values, HEADS if "q_proj" in name else KV_HEADS)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_exported_model_is_the_original(tied: bool, tmp_path: Path) -> None:
    original = tiny_llama(tied)
    write_gguf(original, tmp_path / "tiny.gguf")
    (tmp_path / "hf").mkdir()
    export_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")

    logging.disable_progress_bar()
    loaded, report = LlamaForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(report.values()), report
    assert loaded.config.rms_norm_eps == 1e-6
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, original(ids).logits, rtol=0, atol=0)


def test_the_exported_tokenizer_follows_the_metadata(tmp_path: Path) -> None:
    write_gguf(tiny_llama(tied=True), tmp_path / "tiny.gguf")
    (tmp_path / "hf").mkdir()
    export_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer("ab ab12<|start|>a").input_ids == [7, 8, 4, 5, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 0, 0)
    assert tokenizer.decode([8, 4, 0], skip_special_tokens=True) == " ab1"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    config = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert config == {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 0}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"arch": "mamba"}, "general.architecture is 'mamba'"),
        ({"pre": "qwen2"}, "tokenizer.ggml.pre is 'qwen2'"),
    ],
)
def test_other_kinds_are_refused_by_name(change: dict[str, str], named: str, tmp_path: Path) -> None:
    write_gguf(tiny_llama(tied=True), tmp_path / "tiny.gguf", **change)
    with pytest.raises(ModelError, match=named):
        export_gguf(tmp_path / "tiny.gguf", tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a gguf file at all, but long enough"])
def test_a_file_that_is_no_gguf_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelError, match="no readable GGUF"):
        export_gguf(tmp_path / "x.gguf", tmp_path)
