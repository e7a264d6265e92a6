"""vLLM's structured outputs as grammars."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pageport.backends.triton_python.contract import UnsupportedRequestError
from pageport.backends.triton_python.request_parameters import read_sampling
from pageport.backends.triton_python.structured_outputs import read_structured_outputs
from pageport.core import Grammar, GrammarKind, InvalidRequestError
from pageport.core.grammar import check_grammar

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("value", "kind", "source"),
    [
        ({"json": SCHEMA}, GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
        ({"json": json.dumps(SCHEMA)}, GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
        (json.dumps({"json": SCHEMA}), GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
        ({"json_object": True}, GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
        ({"regex": "[0-9]+", "choice": None, "json_object": False}, GrammarKind.REGEX, "[0-9]+"),
        ({"choice": ["yes", "no"]}, GrammarKind.REGEX, "yes|no"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["structured_outputs", "guided_decoding"])
def test_each_kind(name: str, value: Any, kind: GrammarKind, source: str) -> None:
    assert read_sampling({name: value, "max_tokens": 3}).grammar == Grammar(kind, source)


def test_choices_are_texts_and_no_expressions() -> None:
    choices = ["a.b", "c|d (e)", "[f]{2}\\g", "tab\tline\n#~&-/\"'", "é한"]
    grammar = read_structured_outputs("structured_outputs", {"choice": choices})
    check_grammar(grammar)
    assert all(re.fullmatch(grammar.source, choice) for choice in choices)
    assert not re.fullmatch(grammar.source, "axb")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "^x: must have one of .*given: none"),
        ({"json": {}, "regex": "a"}, "^x: must have one of .*given: json, regex"),
        ("{", "^x: is not valid JSON"),
        ("[" * 100_000, "^x: is not valid JSON"),
        ([1], "^x: must be a JSON object"),
        ({"regex": 3}, "^x.regex: is not of the right type .*given: 3"),
        ({"choice": []}, r"^x.choice: is not of the right type .*given: \[\]"),
        ({"choice": ["a", 1]}, "^x.choice: is not of the right type"),
        ({"json_object": "yes"}, "^x.json_object: is not of the right type"),
    ],
    ids=str,
)
def test_what_is_not_written_as_it_must_be_is_named(value: Any, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        read_structured_outputs("x", value)


@pytest.mark.parametrize("name", ["grammar", "structural_tag", "disable_any_whitespace"])
def test_other_kinds_and_options_are_not_supported(name: str) -> None:
    with pytest.raises(UnsupportedRequestError, match=name):
        read_structured_outputs("structured_outputs", {"regex": "a", name: "b"})
