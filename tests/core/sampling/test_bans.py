from __future__ import annotations

import pytest

from pageport.core.errors import InvalidRequestError
from pageport.core.sampling import bad_word_token_ids, validate_for_vocabulary
from pageport.core.sampling_params import SamplingParams

PIECES = {
    "foo": [1],
    " foo": [2],
    "barbaz": [3, 4],
    " barbaz": [5],
    "": [],
    " ": [6],
    "same": [7],
    " same": [7],
}


def test_bad_words_are_spelt_with_and_without_a_leading_space() -> None:
    assert bad_word_token_ids(PIECES.__getitem__, ["foo", " barbaz"]) == ((1,), (2,), (3, 4), (5,))


def test_a_spelling_is_listed_once_and_never_empty() -> None:
    assert bad_word_token_ids(PIECES.__getitem__, ["same", "foo", "foo"]) == ((7,), (1,), (2,))
    assert bad_word_token_ids(PIECES.__getitem__, [" "]) == ((6,),)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(logit_bias={5: 1.0, 10: 1.0}), "logit_bias"),
        (SamplingParams(logit_bias={-10: 1.0}), "logit_bias"),
        (SamplingParams(stop_token_ids=(3, 10)), "stop_token_ids"),
    ],
)
def test_token_ids_outside_the_vocabulary_are_refused(params: SamplingParams, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"10 is not in the vocabulary, 0 to 9") as caught:
        validate_for_vocabulary(params, 10)
    assert caught.value.field == field


def test_token_ids_inside_the_vocabulary_pass() -> None:
    validate_for_vocabulary(SamplingParams(logit_bias={0: 1.0, 9: 1.0}, stop_token_ids=(0, 9)), 10)
