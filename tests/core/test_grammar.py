"""Answers that must match: a regular expression, a JSON schema. Judged by Python's own re and json."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import torch
from engine_runs import answer, make_engine, run
from tiny_model import byte_tokenizer

from pageport.core import (
    Engine,
    EngineClient,
    EngineRequest,
    FinishReason,
    Grammar,
    GrammarKind,
    InvalidRequestError,
    SamplingParams,
    SequenceProgress,
    parse_engine_config,
)
from pageport.core.grammar import check_grammar
from pageport.core.sampling.grammar import GrammarCompiler
from pageport.core.sampling.grammar_masks import apply_grammars

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


def schema_of(text: str) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def letters(text: str) -> list[int]:
    """The tokens that spell a text letter by letter, special or not."""
    return [token for letter in text for token in byte_tokenizer().encode(letter).ids]


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
        # One space at most where white space is allowed.
        assert re.fullmatch(r'\{ ?"name" ?: ?"[ab]" ?, ?"age" ?: ?\d{1,2} ?\}', output.text)


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
        (regex("(unclosed"), "regular expression cannot be followed: unclosed group .*given: .unclosed"),
        (regex("(?=x)y"), "regular expression cannot be followed: look-around"),
        (regex(r"\bword"), "regular expression cannot be followed: lookarounds not supported"),
        (regex(r"(a)\1"), "regular expression cannot be followed: backreferences"),
        (schema_of("{"), "JSON schema cannot be followed: it is not JSON"),
        (schema_of("[1]"), "JSON schema cannot be followed: it must be a JSON object"),
        (
            schema_of('{"a":' * 10_000 + "1" + "}" * 10_000),
            "JSON schema cannot be followed: it is nested too deeply",
        ),
        (schema_of('{"type": "nonsense"}'), "JSON schema cannot be followed: Invalid type: nonsense"),
        (schema_of('{"uniqueItems": true}'), 'JSON schema cannot be followed: .*"uniqueItems"'),
        (schema_of('{"type": "string", "format": "fancy"}'), "JSON schema cannot be followed: .*fancy"),
        (schema_of('{"$ref": "http://host/schema"}'), "JSON schema cannot be followed: .*http://host/schema"),
    ],
)
def test_what_is_no_grammar_is_refused_alone(engine: Engine, grammar: Grammar, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^grammar: this {words}"):
        check_grammar(grammar)
    request = EngineRequest("bad", PROMPT, SamplingParams(grammar=grammar), time.monotonic())
    with pytest.raises(InvalidRequestError, match=f"^grammar: this {words}"):
        engine.add_request(request)
    assert not engine.has_work
    assert answer(engine, PROMPT, max_tokens=2, temperature=0.0).num_output_tokens == 2
    engine.check_integrity()


def test_an_expression_that_no_text_matches_is_refused(engine: Engine) -> None:
    request = EngineRequest("bad", PROMPT, SamplingParams(grammar=regex(r"[^\s\S]")), time.monotonic())
    with pytest.raises(InvalidRequestError, match="grammar"):
        engine.add_request(request)


async def test_a_client_refuses_before_it_asks_an_engine(tiny_model: Path) -> None:
    client = EngineClient(parse_engine_config({"model": tiny_model}))  # never started
    outputs = client.submit(list(PROMPT), SamplingParams(grammar=regex("[0-9")))
    with pytest.raises(InvalidRequestError, match="unclosed character class"):
        async for _ in outputs:
            pass


def test_special_tokens_are_no_text(engine: Engine) -> None:
    """Where anything may be written, none of them comes but the end; what they are written as can be asked for."""
    for seed in range(8):
        anything = answer(
            engine, PROMPT, temperature=1e4, seed=seed, max_tokens=40, grammar=regex(r"[\s\S]*"),
            skip_special_tokens=False,
        )  # fmt: skip
        assert 256 not in anything.token_ids
    spelled = answer(
        engine,
        PROMPT,
        temperature=1.0,
        max_tokens=40,
        grammar=regex("<end><pad>!"),
        skip_special_tokens=False,
    )
    assert spelled.token_ids == [*letters("<end><pad>!"), EOS]
    assert spelled.finish_reason is FinishReason.STOP


def test_stop_strings_and_the_limit_end_an_answer_inside_its_grammar(engine: Engine) -> None:
    stopped = answer(engine, PROMPT, seed=1, max_tokens=40, grammar=regex("[a-c]{4}x[a-c]{9}"), stop="x")
    assert stopped.finish_reason is FinishReason.STOP and stopped.stop_reason == "x"
    assert re.fullmatch("[a-c]{4}", stopped.text)
    cut = answer(engine, PROMPT, seed=1, max_tokens=7, grammar=regex("[a-c]{4}x[a-c]{9}"))
    assert cut.finish_reason is FinishReason.LENGTH
    assert re.fullmatch("[a-c]{4}x[a-c]{2}", cut.text)


def test_the_end_of_the_grammar_is_the_end(engine: Engine) -> None:
    """Neither `min_tokens` nor `ignore_eos` can ask for more than the grammar allows; below that they count."""
    short = answer(
        engine, PROMPT, seed=1, max_tokens=40, min_tokens=20, ignore_eos=True, grammar=regex("ab?c")
    )
    assert short.text in ("ac", "abc")
    assert short.finish_reason is FinishReason.STOP and short.token_ids[-1] == EOS
    endless = answer(engine, PROMPT, seed=1, max_tokens=40, min_tokens=20, grammar=regex("[0-9]+"))
    assert endless.num_output_tokens > 20


def test_an_answer_that_cannot_go_on_ends_with_an_error(engine: Engine) -> None:
    params = SamplingParams(grammar=regex("aaab"), bad_words=("b",), max_tokens=40, temperature=0.0)
    other = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    (stuck,), (fine,) = run(engine, (PROMPT, params), (PROMPT, other))
    assert stuck.finish_reason is FinishReason.ERROR
    assert stuck.error is not None and stuck.error.startswith("grammar: no token can follow the text so far")
    assert stuck.text == "aaa"
    assert fine.finish_reason is FinishReason.LENGTH and fine.num_output_tokens == 20


def test_without_an_end_token_there_are_no_grammars() -> None:
    with pytest.raises(InvalidRequestError, match="tokenizer of this model: it has no end token"):
        GrammarCompiler(byte_tokenizer(), 258, ()).matcher(regex("a"))


def test_logits_wider_than_the_tokenizer() -> None:
    compiler = GrammarCompiler(byte_tokenizer(), 300, (EOS,))
    logits = torch.zeros(3, 300)
    digits, any_text = (compiler.matcher(regex(source)) for source in ("[0-9]", r"[\s\S]*"))
    apply_grammars(logits, [2, 0], [digits, any_text])
    assert logits[2].isfinite().nonzero()[:, 0].tolist() == sorted(letters("0123456789"))
    assert logits[1].isfinite().all()
    assert (
        not logits[0, 256].isfinite() and logits[0, EOS].isfinite() and not logits[0, 258:].isfinite().any()
    )


def test_old_grammars_make_room_for_new_ones() -> None:
    compiler = GrammarCompiler(byte_tokenizer(), 258, (EOS,))
    for number in range(100):
        compiler.matcher(regex(f"a{{{number}}}"))
    assert len(compiler._compiled) == 64
    assert regex("a{99}") in compiler._compiled and regex("a{35}") not in compiler._compiled


# Expressions that TGI's router makes of JSON schemas and tools.
_STRING = r'"([^"\\\x00-\x1F\x7F-\x9F]|\\["\\])*"'
_TOOLS = (
    r'\{([ ]?"function"[ ]?:[ ]?(\{[ ]?"_name"[ ]?:[ ]?"get_weather"[ ]?,[ ]?"city"[ ]?:[ ]?'
    + _STRING
    + r'[ ]?,[ ]?"unit"[ ]?:[ ]?("C"|"F")[ ]?\}|\{[ ]?"_name"[ ]?:[ ]?"no_tool"[ ]?\}))?[ ]?\}'
)
_PERSON = r'\{[ ]?"name"[ ]?:[ ]?' + _STRING + r'[ ]?,[ ]?"age"[ ]?:[ ]?(-)?(0|[1-9][0-9]*)[ ]?\}'


def test_a_repetition_without_a_minimum(engine: Engine) -> None:
    """TGI's router writes it for `maxLength`."""
    pattern = r"x{,3}[{,2}]{2}\{,y"
    output = answer(engine, PROMPT, temperature=9.0, seed=4, max_tokens=20, grammar=regex(pattern))
    assert re.fullmatch(r"x{0,3}[{,2}]{2}\{,y", output.text)


def test_any_tokens_that_spell_a_text_may_spell_it() -> None:
    """Also where only one text can follow: the share of each token is what it is without the grammar."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<a", "<ab", "b>"])
    compiler = GrammarCompiler(tokenizer, 261, (EOS,))
    logits = torch.zeros(1, 261)
    apply_grammars(logits, [0], [compiler.matcher(regex("<ab>"))])
    assert logits[0].isfinite().nonzero()[:, 0].tolist() == [letters("<")[0], 258, 259]


@pytest.mark.parametrize("pattern", [_TOOLS, _PERSON])
def test_expressions_of_tgi_s_router(engine: Engine, pattern: str) -> None:
    ended = 0
    soon = {letters('"')[0]: 6.0, letters("}")[0]: 6.0}
    for seed in range(12):
        output = answer(
            engine, PROMPT, seed=seed, max_tokens=88, grammar=regex(pattern), logit_bias=soon, temperature=2.0
        )
        if output.finish_reason is FinishReason.STOP:
            ended += 1
            assert re.fullmatch(pattern, output.text)
            assert isinstance(json.loads(output.text), dict)
    assert ended
