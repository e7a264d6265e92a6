from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.core.sampling import Sampler, SamplingState
from pageport.core.sampling_params import SamplingParams


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([3, 40, 500]), st.integers(0, 20), st.booleans())
def test_prompt_logprobs_are_those_of_a_full_sort(seed: int, vocab_size: int, num: int, equals: bool) -> None:
    generator = np.random.default_rng(seed)
    logits = (generator.normal(size=(10, vocab_size)) * 3).astype(np.float32)
    if equals:
        logits = np.round(logits)
    targets = generator.integers(vocab_size, size=10).tolist()
    sampler = Sampler(torch.device("cpu"))
    for row, target, position in zip(
        logits, targets, sampler.prompt_logprobs(torch.from_numpy(logits.copy()), targets, num), strict=True
    ):
        wide = row.astype(np.float64)
        logprobs = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        order = np.lexsort((np.arange(vocab_size), -row)).tolist()
        expected = [target, *(token for token in order[:num] if token != target)]
        assert position.token_ids == expected
        assert position.ranks == [order.index(token) + 1 for token in expected]
        assert position.logprobs == pytest.approx(logprobs[expected].tolist(), abs=1e-5)


def test_logprobs_are_the_models_whatever_is_asked_of_the_draw() -> None:
    probabilities = np.array([[0.1, 0.6, 0.3]], dtype=np.float32)
    params = SamplingParams(
        temperature=0.0,
        logprobs=2,
        logit_bias={0: 50.0},
        presence_penalty=2.0,
        stop_token_ids=(1,),
        min_tokens=1,
    )
    state = SamplingState(params, 0, [1], [], ())
    sampled = Sampler(torch.device("cpu")).sample(torch.from_numpy(np.log(probabilities)), [state])
    assert sampled.token_ids == [0]
    position = sampled.logprobs[0]
    assert position is not None
    assert position.token_ids == [0, 1, 2]
    assert position.ranks == [3, 1, 2]
    assert np.exp(position.logprobs) == pytest.approx([0.1, 0.6, 0.3])


def test_each_row_gets_as_many_as_it_asked_for() -> None:
    states = [
        SamplingState(SamplingParams(temperature=0.0, logprobs=num), 0, [0], [], ())
        for num in (None, 0, 1, 3, 20)
    ]
    logits = torch.arange(8.0).repeat(5, 1)
    sampled = Sampler(torch.device("cpu")).sample(logits, states)
    assert [entry and entry.token_ids for entry in sampled.logprobs] == [
        None,
        [7],
        [7],
        [7, 6, 5],
        [7, 6, 5, 4, 3, 2, 1, 0],
    ]


def test_an_impossible_prompt_token_has_minus_infinity_and_never_nan() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 0.0], [torch.nan, 1.0, 0.0]])
    first, second = Sampler(torch.device("cpu")).prompt_logprobs(logits, [1, 0], 1)
    assert first == ([1, 0], [-np.inf, pytest.approx(np.log(0.5))], [3, 1])
    assert second.logprobs[0] == -np.inf
    assert second.token_ids == [0, 1]


def test_of_many_equal_tokens_the_lowest_ids_are_reported() -> None:
    (position,) = Sampler(torch.device("cpu")).prompt_logprobs(torch.zeros(1, 500), [400], 3)
    assert position.token_ids == [400, 0, 1, 2]
    assert position.ranks == [401, 1, 2, 3]
