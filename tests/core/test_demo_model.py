"""The demo model is what its GGUF says, and answers as it should."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
import torch
from gguf import GGUFReader
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from pageport.core import ModelError, demo_gguf_path, demo_model_path, resolve_model

# llama.cpp's pre-tokenizer "smollm": numbers one by one, then GPT-2's pieces of what is between them.
NUMBER = regex.compile(r"(\p{N})")
PIECE = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")

ODD_TEXTS = [
    "I have 12345 apples, it's 3.14159 o'clock (12½, ٣٤)",
    "  leading,   inner \t and trailing   \n\n\n",
    "\n\n3\n 4  5",
    "def f(x):\n    return x + 1  # don't\r\n",
    "naïve café ÀÉÎ ß 日本語 русский عربى 한국어 हिन्दी",
    "👩‍👩‍👧‍👦 🙂🇫🇷 e\u0301 \u200b\u00a0|\x00\x07\x7f\x85",
    "<|im_start|>user\nhi<|im_end|>\n",
    "",
]


def random_texts(count: int) -> list[str]:
    rng = random.Random(0)
    ascii_letters = "".join(map(chr, range(32, 127)))
    ranges = ["  \n", ascii_letters, ascii_letters, "0123456789", "áßñ日本語й🙂🔈½ \t'"]
    lengths = [rng.randrange(1, 60) for _ in range(count)]
    return ["".join(rng.choice(rng.choice(ranges)) for _ in range(length)) for length in lengths]


class NaiveBPE:
    """Byte-level BPE from the GGUF's vocabulary and merges, as simple as can be."""

    def __init__(self, gguf_path: Path) -> None:
        fields = GGUFReader(gguf_path).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        kinds = fields["tokenizer.ggml.token_type"].contents()
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {
            tuple(m.split(" ")): rank for rank, m in enumerate(fields["tokenizer.ggml.merges"].contents())
        }
        specials = [regex.escape(token) for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
        self.special = regex.compile(f"({'|'.join(specials)})")
        self.letters = byte_letters()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(self.special.split(text)):
            if i % 2:
                ids.append(self.ids[part])
                continue
            for piece in (p for span in NUMBER.split(part) for p in PIECE.findall(span)):
                ids += [self.ids[symbol] for symbol in self.merged(piece) if symbol in self.ids]
        return ids

    def merged(self, piece: str) -> list[str]:
        symbols = [self.letters[byte] for byte in piece.encode()]
        while True:
            pairs = [(self.ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in self.ranks]
            if not pairs:
                return symbols
            _, i = min(pairs)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def byte_letters() -> list[str]:
    """GPT-2's printable stand-in for each byte: itself where printable, else the next from U+0100."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


@cache
def tokenizer_of(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def test_the_folder_has_every_usual_file(demo_model: Path) -> None:
    files = {path.name for path in demo_model.iterdir()}
    assert files >= {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(path.stat().st_size for path in demo_model.iterdir()) < 600e6
    assert demo_model_path() == demo_model == resolve_model("demo")


def test_special_tokens_are_those_of_the_metadata(demo_model: Path) -> None:
    tokenizer = tokenizer_of(demo_model)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert tokenizer("Hello").input_ids == tokenizer("Hello", add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(tokenizer("year 2024").input_ids) == [
        "year",
        "Ġ",
        "2",
        "0",
        "2",
        "4",
    ]


def test_tokens_equal_a_naive_encoder(demo_model: Path) -> None:
    tokenizer, naive = tokenizer_of(demo_model), NaiveBPE(demo_gguf_path())
    assert sorted(naive.letters) == sorted(ByteLevel.alphabet())
    for text in [*ODD_TEXTS, *random_texts(150)]:
        assert tokenizer(text).input_ids == naive.encode(text), repr(text)


def test_text_survives_a_round_trip(demo_model: Path) -> None:
    tokenizer = tokenizer_of(demo_model)
    for text in [*ODD_TEXTS, *random_texts(300)]:
        assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_tokens_equal_those_of_transformers_own_conversion(demo_model: Path) -> None:
    """It does not split digits and may add a BOS; on texts without numbers the rest must agree."""
    gguf = demo_gguf_path()
    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    ours = tokenizer_of(demo_model)
    texts = [NUMBER.sub("", text) for text in [*ODD_TEXTS, *random_texts(300)]]
    for text in texts:
        assert ours(text).input_ids == theirs(text, add_special_tokens=False).input_ids, repr(text)


def test_it_loads_without_a_mismatch_and_knows_the_capital_of_france(demo_model: Path) -> None:
    logging.disable_progress_bar()
    tokenizer = tokenizer_of(demo_model)
    model, report = AutoModelForCausalLM.from_pretrained(demo_model, output_loading_info=True)
    assert not any(report.values()), report
    assert model.dtype == torch.float32
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    assert resolve_model(tmp_path) == tmp_path
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent"):
        resolve_model(tmp_path / "absent")
