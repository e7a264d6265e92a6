from __future__ import annotations

import json
from typing import Any

import pytest

from pageport.core.errors import InvalidRequestError
from pageport.core.sampling_params import (
    Grammar,
    GrammarKind,
    LogprobsMode,
    PenaltyStyle,
    SamplingParams,
    StopMatch,
    Watermark,
    parse_sampling_params,
)


def test_the_defaults_are_those_of_vllm() -> None:
    params = parse_sampling_params({})
    assert params == SamplingParams()
    assert (params.n, params.max_tokens, params.temperature, params.top_k, params.top_p) == (
        1,
        16,
        1.0,
        0,
        1.0,
    )


def test_numbers_may_come_as_strings_and_one_stop_string_alone() -> None:
    params = parse_sampling_params(
        {"temperature": "0.7", "max_tokens": "5", "top_k": "3", "ignore_eos": "true", "stop": "END"}
    )
    assert (params.temperature, params.max_tokens, params.top_k) == (0.7, 5, 3)
    assert params.ignore_eos is True
    assert params.stop == ("END",)


def test_token_ids_of_a_logit_bias_may_come_as_json_keys() -> None:
    assert parse_sampling_params({"logit_bias": {"7": -1}}).logit_bias == {7: -1.0}


def test_null_is_the_default() -> None:
    assert parse_sampling_params({"temperature": None, "max_tokens": None, "seed": None}) == SamplingParams()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"n": 0}, "n"),
        ({"n": 65}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_k": -2}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"logit_bias": {"7": float("inf")}}, "logit_bias"),
        ({"logit_bias": {"seven": 1.0}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 1000}, "stop"),
        ({"bad_words": ["", "x"]}, "bad_words"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"beam_width": 3}, "beam_width"),
        ({"grammar": "[0-9]"}, "grammar"),
        ({"grammar": {"kind": "regexp", "source": "[0-9]"}}, "grammar"),
        ({"grammar": {"kind": "regex"}}, "grammar"),
        ({"watermark": {"gamma": 1.0}}, "watermark"),
        ({"penalty_style": "squared"}, "penalty_style"),
        ({"logprobs_mode": "cooked"}, "logprobs_mode"),
        ({"stop_match": "nowhere"}, "stop_match"),
        ({"token_texts": "some"}, "token_texts"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_by_name(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_sampling_params(values)
    assert caught.value.field.split(".")[0] == field
    assert caught.value.problem


def test_what_is_made_of_parts_can_be_given_as_json() -> None:
    given = """{"grammar": {"kind": "json_schema", "source": "{}"}, "watermark": {"delta": 1},
        "logprobs_mode": "processed", "stop_match": "at_token_end", "penalty_style": "share", "token_texts": true}"""
    assert parse_sampling_params(json.loads(given)) == SamplingParams(
        grammar=Grammar(GrammarKind.JSON_SCHEMA, "{}"),
        watermark=Watermark(0.5, 1.0),
        logprobs_mode=LogprobsMode.PROCESSED,
        stop_match=StopMatch.AT_TOKEN_END,
        penalty_style=PenaltyStyle.SHARE,
        token_texts=True,
    )
