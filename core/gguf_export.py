"""A GGUF file as an ordinary Hugging Face model folder.

The GGUF's own metadata is the truth for special tokens, the chat template and the shape of the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pageport.core.errors import ModelError
from pageport.core.gguf_file import GgufFile

_PRE_TOKENIZER = "smollm"
_CONTROL_TOKEN = 3  # tokenizer.ggml.token_type of tokens that plain text never becomes


def export_gguf(gguf_path: Path, folder: Path) -> None:
    """Write `config.json`, `generation_config.json`, `tokenizer.json`, `tokenizer_config.json` and
    `model.safetensors` into `folder`.

    Weights are stored in float32: a dequantised value (float16 scale times a small integer, plus an
    offset) fits no 16-bit type exactly, and the folder shall give the same logits as the GGUF itself.

    Raises:
        ModelError: no readable GGUF file, an unsupported architecture, or a pre-tokenizer other than
            SmolLM's.
    """
    gguf = GgufFile(gguf_path)
    tokenizer = build_tokenizer(gguf)
    config = gguf.hf_config()
    special_ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", special_ids)
    _write_json(
        folder / "tokenizer_config.json", _tokenizer_config(gguf.metadata, config["max_position_embeddings"])
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = folder / "model.safetensors"
    save_file({name: gguf.read(name) for name in gguf.tensor_names()}, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # save_file makes it readable by its owner only


def _tokenizer_config(metadata: dict[str, Any], max_length: int) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": metadata["tokenizer.ggml.add_bos_token"],
        "add_prefix_space": metadata["tokenizer.ggml.add_space_prefix"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": metadata["tokenizer.chat_template"],
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
    }


def build_tokenizer(gguf: GgufFile) -> Tokenizer:
    """Byte-level BPE; digits are split singly first. Bytes that the vocabulary lacks are dropped.

    Raises:
        ModelError: a pre-tokenizer other than SmolLM's; guessing one would change what the model reads.
    """
    metadata = gguf.metadata
    pre = metadata.get("tokenizer.ggml.pre")
    if pre != _PRE_TOKENIZER:
        raise ModelError(
            f"{gguf.path}: tokenizer.ggml.pre is {pre!r}; supported: {_PRE_TOKENIZER!r}; "
            "name a tokenizer folder instead"
        )
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
    return tokenizer


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
