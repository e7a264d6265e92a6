"""TGI's parameters in the engine's terms."""

from __future__ import annotations

from typing import Any

import pytest

from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.core import (
    Grammar,
    GrammarKind,
    InvalidRequestError,
    LogprobsMode,
    PenaltyStyle,
    SamplingParams,
    StopMatch,
    Watermark,
)


def test_everything_off_is_greedy_with_tgi_s_ways_of_reporting() -> None:
    assert GenerationParameters(20, seed=3).to_sampling_params() == SamplingParams(
        max_tokens=20,
        temperature=0.0,
        seed=3,
        penalty_style=PenaltyStyle.SHARE,
        logprobs=0,
        logprobs_mode=LogprobsMode.PROCESSED,
        stop_match=StopMatch.AT_TOKEN_END,
        skip_special_tokens=False,
        token_texts=True,
    )


@pytest.mark.parametrize(
    ("given", "temperature"),
    [
        ({}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.7}, 0.7),
        ({"top_k": 1}, 1.0),
        ({"top_p": 0.9}, 1.0),
        ({"typical_p": 0.9}, 1.0),
        ({"repetition_penalty": 1.2, "frequency_penalty": 0.5, "watermark": Watermark()}, 0.0),
    ],
)
def test_a_row_is_sampled_where_any_warper_is_on(given: dict[str, Any], temperature: float) -> None:
    parameters = GenerationParameters(20, seed=3, **given)
    assert parameters.is_sampled == (temperature > 0)
    params = parameters.to_sampling_params()
    assert params.temperature == temperature
    for name, value in given.items():
        assert name == "do_sample" or getattr(params, name) == value


def test_what_goes_through_as_it_is() -> None:
    grammar = Grammar(GrammarKind.REGEX, "a+")
    params = GenerationParameters(
        9,
        seed=2**64 - 1,
        grammar=grammar,
        stop_sequences=("a", "b"),
        ignore_eos_token=True,
        top_n_tokens=5,
        prefill_logprobs=True,
        logit_bias={3: -1.0},
    ).to_sampling_params()
    assert (params.seed, params.grammar, params.stop, params.ignore_eos) == (
        2**64 - 1,
        grammar,
        ("a", "b"),
        True,
    )
    assert (params.logprobs, params.prompt_logprobs, params.logit_bias) == (5, 0, {3: -1.0})


def test_an_empty_stop_sequence_leaves_one_token() -> None:
    params = GenerationParameters(9, seed=0, stop_sequences=("x", "")).to_sampling_params()
    assert (params.max_tokens, params.stop) == (1, ("x",))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"top_n_tokens": 21}, r"^top_n_tokens: .*20 \(given: 21\)"),
        ({"max_new_tokens": 0}, r"^max_new_tokens: .*1 \(given: 0\)"),
        ({"repetition_penalty": 0.0}, r"^repetition_penalty: .*0 \(given: 0.0\)"),
        ({"stop_sequences": ("a",) * 257}, "^stop_sequences: .*256"),
    ],
)
def test_what_the_engine_cannot_honour_is_named_as_the_client_wrote_it(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        GenerationParameters(**({"max_new_tokens": 9, "seed": 0} | given)).to_sampling_params()
