"""A request on the wire, and what reaches the engine."""

from __future__ import annotations

from typing import Any

import pytest
from manual_engine import END, byte_tokenizer
from shard_client import request
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.backends.tgi_adapter.pb import generate_v2_pb2 as v2
from pageport.backends.tgi_adapter.pb import generate_v3_pb2 as v3
from pageport.backends.tgi_adapter.shard.incoming import NewRequest, read_request
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import Grammar, GrammarKind, Watermark

START = 1


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Puts `<start>` before each text."""
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = TemplateProcessing(single="<start> $A", special_tokens=[("<start>", START)])
    return tokenizer


def read(wire: Any, tokenizer: Tokenizer, **settings: Any) -> NewRequest:
    return read_request(wire, tokenizer, ShardSettings("x", **settings))


def test_every_parameter_arrives(tokenizer: Tokenizer) -> None:
    wire = request(
        9,
        parameters={
            "temperature": 0.5,
            "top_k": 7,
            "top_p": 0.25,
            "typical_p": 0.75,
            "do_sample": True,
            "seed": 2**64 - 1,
            "repetition_penalty": 1.5,
            "frequency_penalty": -0.5,
            "watermark": True,
            "grammar": "[a-z]+",
            "grammar_type": v3.GRAMMAR_TYPE_REGEX,
        },
        stopping={"max_new_tokens": 11, "stop_sequences": ["\n", "end"], "ignore_eos_token": True},
        top_n_tokens=4,
        prefill_logprobs=True,
    )
    found = read(wire, tokenizer, prefill_logprobs=True, watermark=Watermark(0.25, 3.0))
    assert found.problem is None
    assert found.id == 9
    assert found.parameters == GenerationParameters(
        max_new_tokens=11,
        seed=2**64 - 1,
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        typical_p=0.75,
        do_sample=True,
        repetition_penalty=1.5,
        frequency_penalty=-0.5,
        watermark=Watermark(0.25, 3.0),
        grammar=Grammar(GrammarKind.REGEX, "[a-z]+"),
        stop_sequences=("\n", "end"),
        ignore_eos_token=True,
        top_n_tokens=4,
        prefill_logprobs=True,
    )


def test_what_is_off_is_off(tokenizer: Tokenizer) -> None:
    found = read(request(0, max_new_tokens=3, prefill_logprobs=True), tokenizer)
    assert found.parameters == GenerationParameters(max_new_tokens=3, seed=7)


@pytest.mark.parametrize(
    ("grammar_type", "grammar", "found"),
    [
        (v3.GRAMMAR_TYPE_JSON, '{"type": "object"}', Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')),
        (v3.GRAMMAR_TYPE_NONE, "[a-z]", None),
        (v3.GRAMMAR_TYPE_REGEX, "", None),
    ],
)
def test_kinds_of_grammar(
    tokenizer: Tokenizer, grammar_type: int, grammar: str, found: Grammar | None
) -> None:
    wire = request(0, parameters={"grammar": grammar, "grammar_type": grammar_type})
    assert read(wire, tokenizer).parameters.grammar == found


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, "<start>Hello"),
        ({"add_special_tokens": False}, "Hello"),
        ({"truncate": 3}, "<start>lo"),
        ({"truncate": 3, "add_special_tokens": False}, "llo"),
        ({"truncate": 0}, "<start>Hello"),
        (
            {"input_chunks": {"chunks": [{"text": "a"}, {"image": {"data": b"x"}}, {"text": "b"}]}},
            "<start>ab",
        ),
        ({"input_chunks": {}}, "<start>Hello"),
        ({"cache_len": 4, "chunk_len": 2, "blocks": [1], "slots": [2]}, "<start>Hello"),
        ({"adapter_id": "nobody-knows-it"}, "<start>Hello"),
    ],
)
def test_prompts(tokenizer: Tokenizer, fields: dict[str, Any], prompt: str) -> None:
    found = read(request(0, "Hello", **fields), tokenizer)
    assert found.problem is None
    assert tokenizer.decode(found.prompt_ids, skip_special_tokens=False) == prompt


def test_the_second_version_adds_special_tokens_always(tokenizer: Tokenizer) -> None:
    found = read(request(0, "Hello", pb=v2, truncate=4), tokenizer)
    assert tokenizer.decode(found.prompt_ids, skip_special_tokens=False) == "<start>llo"


@pytest.mark.parametrize("pb", [v2, v3])
def test_a_problem_is_no_exception(tokenizer: Tokenizer, pb: Any) -> None:
    found = read(request(4, pb=pb, parameters={"repetition_penalty": 0.0}), tokenizer)
    assert found == NewRequest(4, problem="repetition_penalty: Input should be greater than 0 (given: 0.0)")


def test_special_tokens_in_a_prompt_are_read(tokenizer: Tokenizer) -> None:
    """Chat templates write them as text."""
    found = read(request(0, "a<end>b", add_special_tokens=False), tokenizer)
    assert found.prompt_ids[1] == END
