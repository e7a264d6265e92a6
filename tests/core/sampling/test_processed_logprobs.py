"""Log-probabilities after everything that changes or removes scores, against the slow reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling_reference import TooCloseError, adjusted_logits, processed_logprobs

from pageport.core.sampling import Sampler, SamplingState, TokenLogprobs
from pageport.core.sampling_params import LogprobsMode, SamplingParams, Watermark

parameters = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7])},
    optional={
        "top_k": st.sampled_from([1, 2, 5, 50, 300]),
        "top_p": st.floats(0.01, 1.0),
        "min_p": st.floats(1e-4, 0.5),
        "typical_p": st.floats(0.05, 0.99),
        "repetition_penalty": st.sampled_from([0.5, 1.3]),
        "frequency_penalty": st.sampled_from([-0.3, 1.1]),
        "logit_bias": st.dictionaries(st.integers(0, 4), st.sampled_from([-5.0, 0.5])),
        "min_tokens": st.sampled_from([0, 5]),
        "watermark": st.just(Watermark()),
    },
)


def report(row: np.ndarray[Any, np.dtype[np.float32]], state: SamplingState) -> TokenLogprobs:
    logits = torch.from_numpy(row[None].copy())
    (position,) = Sampler(torch.device("cpu")).sample(logits, [state]).logprobs
    assert position is not None
    return position


def make_state(num: int, seed: int = 0, **values: Any) -> SamplingState:
    params = SamplingParams(logprobs=num, logprobs_mode=LogprobsMode.PROCESSED, max_tokens=None, **values)
    return SamplingState(params, seed, [1, 2, 2], [0, 3], (4,))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([5, 40, 700]), parameters, st.integers(0, 20), st.booleans())
def test_as_the_reference(seed: int, vocab_size: int, values: dict[str, Any], num: int, equals: bool) -> None:
    generator = np.random.default_rng(seed)
    row = (generator.normal(size=vocab_size) * generator.choice([0.5, 3.0])).astype(np.float32)
    if equals:
        row = np.round(row * 2) / 2
    state = make_state(num, seed, **values)
    try:
        expected = processed_logprobs(row, state)
    except TooCloseError:
        assume(False)
    scores = adjusted_logits(row, state)
    order = sorted(expected, key=lambda token: (-scores[token], token))
    if num:
        last = scores[order[min(num, len(order)) - 1]]
        listed = [token for token in order if scores[token] >= last]
    else:
        listed = []
    position = report(row, state)
    chosen, *others = position.token_ids
    assert others == [token for token in listed if token != chosen]
    assert position.ranks == ([order.index(token) + 1 for token in position.token_ids] if num else [0])
    assert position.logprobs == pytest.approx([expected[token] for token in position.token_ids], abs=1e-5)


def test_equal_tokens_at_the_last_place_are_all_listed_however_many() -> None:
    row = np.zeros(2000, dtype=np.float32)
    row[7] = 1.0
    position = report(row, make_state(3, temperature=0.0))
    assert position.token_ids == [7, *(token for token in range(2000) if token != 7)]
    assert report(row, make_state(1, temperature=0.0)).token_ids == [7]


def test_impossible_tokens_are_not_listed() -> None:
    row = np.array([0.0, 1.0, -np.inf, 0.5, 0.0], dtype=np.float32)
    position = report(row, make_state(5, temperature=0.0, min_tokens=9))
    assert position.token_ids == [1, 3, 0]  # 4 is the end token
    assert np.exp(position.logprobs).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("values", [{"top_k": 1}, {"top_p": 1e-6}, {"typical_p": 1e-6}], ids=str)
def test_where_one_token_is_left_it_is_certain(values: dict[str, Any]) -> None:
    row = np.array([0.0, 3.0, 1.0, 0.5, 0.0], dtype=np.float32)
    position = report(row, make_state(5, **values))
    assert (len(position.token_ids), position.logprobs, position.ranks) == (1, [0.0], [1])


def test_a_row_that_is_no_distribution_is_certain_of_its_end() -> None:
    asked: list[dict[str, Any]] = [{"temperature": 0.0}, {}, {"top_p": 0.5}, {"top_k": 3}, {"typical_p": 0.9}]
    for values in asked:
        states = [
            make_state(3, **values),
            make_state(3),
        ]  # beside another, so that its group is a part of the batch
        logits = torch.full((2, 6), torch.nan)
        logits[1] = 0.0
        position = Sampler(torch.device("cpu")).sample(logits, states).logprobs[0]
        assert position == ([4], [0.0], [1]), values


def test_tokens_that_top_k_leaves_are_listed_even_where_they_are_never_drawn() -> None:
    position = report(np.array([0.0, -90.0, -60.0, -99.0], dtype=np.float32), make_state(5, top_k=3))
    assert (position.token_ids, position.logprobs) == ([0, 2, 1], [0.0, -60.0, -90.0])


def test_greedy_rows_and_others_side_by_side_each_in_their_own_mode() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], dtype=np.float32))
    states = [
        make_state(0, temperature=0.0),
        SamplingState(SamplingParams(logprobs=0, temperature=0.0, logit_bias={1: 9.0}), 0, [0], [], ()),
        SamplingState(SamplingParams(temperature=0.0), 0, [0], [], ()),
        make_state(4, temperature=0.5, top_k=2),
    ]
    sampled = Sampler(torch.device("cpu")).sample(torch.from_numpy(np.tile(row, (4, 1))), states)
    first, second, third, fourth = sampled.logprobs
    assert first == ([0], [pytest.approx(np.log(0.5))], [0])
    assert second == ([1], [pytest.approx(np.log(0.25))], [2])
    assert third is None
    assert fourth is not None
    assert dict(zip(fourth.token_ids, np.exp(fourth.logprobs), strict=True)) == pytest.approx(
        {0: 0.8, 1: 0.2}
    )
