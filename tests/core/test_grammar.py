"""Answers that must match: a regular expression, a JSON schema. Judged by Python's own re and json."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from engine_runs import answer, make_engine, run

from pageport.core import (
    Engine,
    EngineRequest,
    FinishReason,
    Grammar,
    GrammarKind,
    InvalidRequestError,
    SamplingParams,
    SequenceProgress,
)

PROMPT = tuple(b"anything")
EOS = 257
PATTERNS = [r"[0-9]{3}-[a-f]{4}", r"(yes|no|maybe)", r"(ab)*c", r"é{2,3}!"]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["a", "b"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Engine:
    return make_engine(tiny_model)


def regex(pattern: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
def test_every_answer_matches_the_expression(engine: Engine, pattern: str, temperature: float) -> None:
    for seed in range(5):
        output = answer(
            engine, PROMPT, temperature=temperature, seed=seed, max_tokens=80, grammar=regex(pattern)
        )
        if output.finish_reason is FinishReason.STOP:
            assert re.fullmatch(pattern, output.text), output.text
            assert output.token_ids[-1] == EOS
        else:  # (ab)* may go on
            assert pattern == "(ab)*c"


def test_a_schema_is_kept_to(engine: Engine) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
    for seed in range(8):
        output = answer(engine, PROMPT, temperature=20.0, seed=seed, max_tokens=80, grammar=grammar)
        value = json.loads(output.text)
        assert value["name"] in ("a", "b")
        assert 0 <= value["age"] <= 99
        assert output.text == json.dumps(value)


def test_objects_have_only_the_properties_that_are_named_unless_the_schema_opens_them(engine: Engine) -> None:
    named = {"type": "object", "properties": {"properties": {"const": 1}}, "required": ["properties"]}
    for schema, opened in ((named, False), ({**named, "additionalProperties": {"type": "integer"}}, True)):
        grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
        outputs = [
            answer(engine, PROMPT, seed=s, temperature=30.0, max_tokens=80, grammar=grammar) for s in range(8)
        ]
        ended = [json.loads(o.text) for o in outputs if o.finish_reason is FinishReason.STOP]
        others = [
            o
            for o in outputs
            if o.finish_reason is not FinishReason.STOP or json.loads(o.text) != {"properties": 1}
        ]
        assert bool(others) == opened
        assert all(value["properties"] == 1 for value in ended)


def test_references_inside_a_schema(engine: Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"$ref": "#/$defs/kind"}},
        "required": ["kind"],
        "$defs": {"kind": {"enum": ["x", "y"]}},
    }
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    assert json.loads(answer(engine, PROMPT, seed=1, max_tokens=60, grammar=grammar).text)["kind"] in "xy"


def test_others_in_the_batch_are_not_touched_and_each_answer_is_the_one_it_gives_alone(
    engine: Engine,
) -> None:
    asked = [
        (PROMPT, SamplingParams(temperature=1.0, seed=1, max_tokens=12)),
        (PROMPT, SamplingParams(temperature=1.0, seed=1, max_tokens=12, grammar=regex(r"[0-9]+"))),
        (PROMPT, SamplingParams(temperature=0.0, max_tokens=12, grammar=regex(r"[a-z]+"))),
    ]
    together = [output.token_ids for (output,) in run(engine, *asked)]
    alone = [run(engine, one)[0][0].token_ids for one in asked]
    assert together == alone
    assert together[0] != together[1]


def test_sequences_of_one_request_keep_their_own_places(engine: Engine) -> None:
    params = SamplingParams(n=3, temperature=30.0, seed=5, max_tokens=40, grammar=regex(r"[0-9]{2,6}x"))
    (outputs,) = run(engine, (PROMPT, params))
    texts = [output.text for output in outputs]
    assert all(re.fullmatch(r"[0-9]{2,6}x", text) for text in texts)
    assert len(set(texts)) > 1


def test_a_resumed_answer_goes_on_in_its_grammar(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=40, grammar=regex(r"[0-9]{8}z"))
    ((whole,),) = run(engine, (PROMPT, params))
    done = SequenceProgress(tuple(whole.token_ids[:4]))
    engine.add_request(EngineRequest("again", PROMPT, params, time.monotonic(), 3, progress=(done,)))
    rest = []
    while engine.has_work:
        rest += [token for output in engine.step() for token in output.token_ids]
    assert rest == whole.token_ids[4:]


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (regex("(unclosed"), "grammar: is no regular expression.*unclosed group.*unclosed"),
        (regex("(?=x)y"), "grammar: is no regular expression.*look-around"),
        (Grammar(GrammarKind.JSON_SCHEMA, "{"), "grammar: is no JSON schema"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "nonsense"}'), "grammar: is no JSON schema"),
    ],
)
def test_what_is_no_grammar_is_refused_alone(engine: Engine, grammar: Grammar, words: str) -> None:
    request = EngineRequest("bad", PROMPT, SamplingParams(grammar=grammar), time.monotonic())
    with pytest.raises(InvalidRequestError, match=words):
        engine.add_request(request)
    assert not engine.has_work
    assert answer(engine, PROMPT, max_tokens=2, temperature=0.0).num_output_tokens == 2
    engine.check_integrity()
