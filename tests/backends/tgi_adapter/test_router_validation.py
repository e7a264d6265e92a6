"""Limits, truncation and defaults of a request, and how a refusal names field, limit and value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from router_harness import recorded_settings
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.errors import ErrorKind, RouterError
from pageport.backends.tgi_adapter.router.inference import GenerateInput, ValidRequest
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.backends.tgi_adapter.router.validation import Validator
from pageport.core import ConfigError, EngineInfo, Grammar, GrammarKind

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
REFERRING = {"$ref": "#/$defs/Person", "$defs": {"Person": SCHEMA}}


async def validated(
    tokenizer: Tokenizer,
    inputs: str = "What is Deep Learning?",
    *,
    settings: RouterSettings | None = None,
    prompt_ids: tuple[int, ...] | None = None,
    own_grammar: Grammar | None = None,
    logit_bias: dict[int, float] | None = None,
    stream: bool = False,
    **parameters: Any,
) -> ValidRequest:
    validator = Validator(settings or recorded_settings(), tokenizer)
    request = GenerateInput(
        inputs=inputs,
        parameters=GenerateParameters.model_validate(parameters),
        start=0.0,
        stream=stream,
        prompt_ids=prompt_ids,
        grammar=own_grammar,
        logit_bias=logit_bias,
    )
    try:
        return await validator.validate(request)
    finally:
        validator.close()


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"temperature": 0}, ("temperature", "above 0", "given: 0")),
        ({"repetition_penalty": -1.5}, ("repetition_penalty", "above 0", "-1.5")),
        ({"frequency_penalty": 2.01}, ("frequency_penalty", "-2 to 2", "2.01")),
        ({"top_k": -3}, ("top_k", "above 0", "-3")),
        ({"top_p": 1.01}, ("top_p", "at most 1", "1.01")),
        ({"typical_p": 1}, ("typical_p", "below 1", "given: 1")),
        ({"truncate": 1024}, ("truncate", "max_input_tokens, 1023", "1024")),
        ({"max_new_tokens": 1020}, ("max_new_tokens", "max_total_tokens, 1024", "5 tokens", "1020 new")),
        ({"stop": ["a"] * 5}, ("stop", "max_stop_sequences, 4", "given: 5")),
        ({"top_n_tokens": 6}, ("top_n_tokens", "max_top_n_tokens, 5", "given: 6")),
        ({"best_of": 3, "do_sample": True}, ("best_of", "max_best_of, 2", "given: 3")),
        ({"best_of": 2}, ("best_of", "sampling", "given: 2")),
        ({"best_of": 2, "do_sample": True, "seed": 7}, ("seed", "best_of", "given: 7")),
        ({"grammar": {"type": "json", "value": "{oops"}}, ("grammar", "not JSON", "{oops")),
        ({"grammar": {"type": "json", "value": [1]}}, ("grammar", "JSON object", "[1]")),
        ({"grammar": {"type": "json", "value": {"type": "object"}}}, ("grammar", "properties", "type")),
        ({"grammar": {"type": "json", "value": {"type": "no", "properties": {}}}}, ("grammar", "no")),
    ],
)
async def test_refusals(tokenizer: Tokenizer, parameters: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(RouterError) as caught:
        await validated(tokenizer, **parameters)
    assert caught.value.kind is ErrorKind.VALIDATION
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize("parameters", [{"best_of": 2, "do_sample": True}, {"decoder_input_details": True}])
async def test_what_a_stream_cannot_have(tokenizer: Tokenizer, parameters: dict[str, Any]) -> None:
    await validated(tokenizer, **parameters)
    with pytest.raises(RouterError, match="stream"):
        await validated(tokenizer, stream=True, **parameters)


async def test_a_prompt_is_cut_on_the_left(tokenizer: Tokenizer) -> None:
    whole = await validated(tokenizer)
    cut = await validated(tokenizer, truncate=2)
    assert cut.prompt_ids == whole.prompt_ids[-2:]
    assert cut.input_length == 2


async def test_a_long_prompt_is_tokenised_the_same_off_the_loop(tokenizer: Tokenizer) -> None:
    text = " word" * 1000
    request = await validated(tokenizer, text, max_new_tokens=1)
    assert list(request.prompt_ids) == tokenizer.encode(text).ids
    assert request.input_length == 1000


async def test_tokens_of_the_client_are_taken_as_they_are(tokenizer: Tokenizer) -> None:
    request = await validated(tokenizer, prompt_ids=(5, 6, 7), logit_bias={3: 1.5})
    assert request.prompt_ids == (5, 6, 7)
    assert request.sampling.logit_bias == {3: 1.5}
    with pytest.raises(RouterError, match="empty"):
        await validated(tokenizer, prompt_ids=())


async def test_no_number_of_tokens_means_all_that_fit(tokenizer: Tokenizer) -> None:
    assert (await validated(tokenizer)).parameters.max_new_tokens == 1024 - 5


@pytest.mark.parametrize(
    ("asked", "given", "strict_given"), [(1024, 1024, 1024), (1025, 1025, 2048), (3000, 2043, 2043)]
)
async def test_more_than_a_round(tokenizer: Tokenizer, asked: int, given: int, strict_given: int) -> None:
    """Up to what the total limit leaves. TGI itself rounds up to whole rounds of 1024."""
    for strict, expected in ((False, given), (True, strict_given)):
        settings = recorded_settings(max_input_tokens=1500, max_total_tokens=2048, strict=strict)
        request = await validated(tokenizer, settings=settings, max_new_tokens=asked)
        assert request.parameters.max_new_tokens == min(expected, 2048 - 5)


async def test_seeds(tokenizer: Tokenizer) -> None:
    largest = await validated(tokenizer, seed=2**64 - 1, do_sample=True)
    assert largest.sampling.seed == 2**64 - 1
    first, second = await validated(tokenizer, do_sample=True), await validated(tokenizer, do_sample=True)
    assert first.parameters.seed != second.parameters.seed


async def test_what_tgi_sets_no_limit_to_is_honoured_as_far_as_it_matters(tokenizer: Tokenizer) -> None:
    sampling = (await validated(tokenizer, temperature=1e39, repetition_penalty=20_000)).sampling
    assert (sampling.temperature, sampling.repetition_penalty) == (1e4, 1e4)


async def test_top_p_1_is_off_unless_strict(tokenizer: Tokenizer) -> None:
    request = await validated(tokenizer, top_p=1.0)
    assert request.sampling.temperature == 0.0
    with pytest.raises(RouterError, match="top_p"):
        await validated(tokenizer, settings=recorded_settings(strict=True), top_p=1.0)


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ({"type": "json", "value": SCHEMA}, GrammarKind.JSON_SCHEMA),
        ({"type": "json", "value": json.dumps(SCHEMA)}, GrammarKind.JSON_SCHEMA),
        ({"type": "json_schema", "value": {"schema": SCHEMA}}, GrammarKind.JSON_SCHEMA),
        ({"type": "json", "value": REFERRING}, GrammarKind.JSON_SCHEMA),
        ({"type": "regex", "value": "[0-9"}, GrammarKind.REGEX),
    ],
)
async def test_grammars(tokenizer: Tokenizer, form: dict[str, Any], kind: GrammarKind) -> None:
    grammar = (await validated(tokenizer, grammar=form)).sampling.grammar
    assert grammar is not None
    assert grammar.kind is kind
    if kind is GrammarKind.JSON_SCHEMA:
        assert json.loads(grammar.source) in (SCHEMA, REFERRING)


async def test_grammars_that_are_off(tokenizer: Tokenizer) -> None:
    empty = {"type": "regex", "value": ""}
    assert (await validated(tokenizer, grammar=empty)).sampling.grammar is None
    own = Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}')
    assert (await validated(tokenizer, own_grammar=own)).sampling.grammar == own
    off = recorded_settings(("--disable-grammar-support",))
    for options in ({"grammar": empty}, {"own_grammar": own}):
        with pytest.raises(RouterError, match="disable_grammar_support"):
            await validated(tokenizer, settings=off, **options)
    with pytest.raises(RouterError, match="strict"):
        await validated(
            tokenizer, settings=recorded_settings(strict=True), grammar={"type": "json", "value": REFERRING}
        )


async def test_prompt_logprobs_need_the_switch(tokenizer: Tokenizer) -> None:
    off = RouterSettings(model_id="m", max_input_tokens=1023, max_total_tokens=1024)
    assert (await validated(tokenizer, decoder_input_details=True)).sampling.prompt_logprobs == 0
    without = await validated(tokenizer, settings=off, decoder_input_details=True)
    assert without.sampling.prompt_logprobs is None


INFO = EngineInfo(
    max_model_len=2048,
    kv_token_capacity=16384,
    vocab_size=300,
    max_num_seqs=8,
    dtype="float32",
    device="cpu",
    kernels="cpu",
    eos_token_ids=(2,),
)


def test_limits_come_from_the_engine() -> None:
    resolved = RouterSettings(model_id="m").resolved(INFO)
    assert (resolved.max_input_tokens, resolved.max_total_tokens) == (2047, 2048)
    resolved = RouterSettings(model_id="m", max_total_tokens=100).resolved(INFO)
    assert (resolved.max_input_tokens, resolved.max_total_tokens) == (99, 100)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_total_tokens": 2049}, "2049.*2048"),
        ({"max_input_tokens": 100, "max_total_tokens": 100}, "100.*below max_total_tokens"),
    ],
)
def test_limits_that_no_engine_honours(limits: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RouterSettings(model_id="m", **limits).resolved(INFO)
