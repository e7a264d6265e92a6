"""The sampler against the slow reference, and alone against itself in company."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling_reference import TooCloseError, next_token

from pageport.core.sampling import SampledTokens, Sampler, SamplingState
from pageport.core.sampling_params import LogprobsMode, PenaltyStyle, SamplingParams, Watermark

VOCAB_SIZES = (5, 300, 2000)  # without, with a short and with a long tail behind the first look


def make_state(seed: int = 0, output: list[int] | None = None, **parameters: Any) -> SamplingState:
    return SamplingState(SamplingParams(**parameters), seed, [1, 2, 2], output or [], (4,))


def sample(logits: npt.NDArray[np.float32], states: list[SamplingState]) -> SampledTokens:
    return Sampler(torch.device("cpu")).sample(torch.from_numpy(logits.copy()), states)


def tokens_of(row: list[float], count: int = 200, **parameters: Any) -> set[int]:
    """The tokens that many draws from one row give."""
    logits = np.tile(np.array(row, dtype=np.float32), (count, 1))
    return set(sample(logits, [make_state(seed, **parameters) for seed in range(count)]).token_ids)


@st.composite
def logit_rows(draw: st.DrawFn, vocab_size: int) -> npt.NDArray[np.float32]:
    """A row that is flat or peaked, of distinct values or of many equal ones."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = generator.normal(size=vocab_size) * draw(st.sampled_from([0.1, 1.0, 3.0, 8.0]))
    if draw(st.booleans()):
        row = np.round(row * 4) / 4
    return row.astype(np.float32)


filters = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.01, 0.5, 1.0, 1.7, 50.0])},
    optional={
        "top_k": st.sampled_from([-1, 1, 2, 3, 50, 256, 257, 400, 10_000]),
        "top_p": st.floats(0.001, 1.0),
        "min_p": st.one_of(st.floats(1e-4, 1.0), st.just(1e-13)),
        "typical_p": st.floats(0.05, 0.99),
    },
)
adjustments = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.5, 1.3]),
        "presence_penalty": st.sampled_from([-1.0, 0.7]),
        "frequency_penalty": st.sampled_from([-0.3, 1.1]),
        "logit_bias": st.dictionaries(st.integers(0, 4), st.sampled_from([-5.0, 0.5, 100.0])),
        "min_tokens": st.integers(0, 5),
        "stop_token_ids": st.sampled_from([[0], [2, 3]]),
        "penalty_style": st.sampled_from(PenaltyStyle),
        "watermark": st.sampled_from([Watermark(), Watermark(0.3, -1.0)]),
    },
)
outputs = st.lists(st.integers(0, 4), max_size=6)
bad_words = st.sampled_from([(), ((3,),), ((1, 2), (0, 0, 3))])


def assert_as_reference(row: npt.NDArray[np.float32], states: list[SamplingState]) -> None:
    sampled = sample(np.tile(row, (len(states), 1)), states).token_ids
    compared = 0
    for state, token in zip(states, sampled, strict=True):
        try:
            assert token == next_token(row, state), state.params
            compared += 1
        except TooCloseError:
            continue
    assume(compared)


@settings(max_examples=120, deadline=None)
@given(st.data(), st.sampled_from(VOCAB_SIZES), filters)
def test_draws_as_the_reference(data: st.DataObject, vocab_size: int, parameters: dict[str, Any]) -> None:
    row = data.draw(logit_rows(vocab_size))
    assert_as_reference(row, [make_state(seed, **parameters) for seed in range(16)])


@settings(max_examples=120, deadline=None)
@given(st.data(), filters, adjustments, outputs, bad_words, st.booleans())
def test_adjusts_as_the_reference(
    data: st.DataObject,
    parameters: dict[str, Any],
    more: dict[str, Any],
    output: list[int],
    words: tuple[tuple[int, ...], ...],
    greedy: bool,
) -> None:
    parameters = {**parameters, **more, "max_tokens": None}
    if greedy:
        parameters["temperature"] = 0.0
    row = data.draw(logit_rows(6))
    states = [make_state(seed, output=list(output), **parameters) for seed in range(4)]
    for state in states:
        state.bad_words_ids = words
    assert_as_reference(row, states)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(VOCAB_SIZES), st.randoms(use_true_random=False))
def test_a_row_is_the_same_alone_and_in_any_company(
    data: st.DataObject, vocab_size: int, random: Any
) -> None:
    count = data.draw(st.integers(2, 20))
    rows = np.stack([data.draw(logit_rows(vocab_size)) for _ in range(count)])
    states = []
    for seed in range(count):
        parameters = {**data.draw(filters), **data.draw(adjustments), "max_tokens": None}
        parameters["temperature"] *= data.draw(st.booleans())
        parameters["logprobs"] = data.draw(st.sampled_from([None, 0, 2]))
        parameters["logprobs_mode"] = data.draw(st.sampled_from(LogprobsMode))
        states.append(make_state(seed, output=data.draw(outputs), **parameters))
    together = sample(rows, states)
    for row in range(count):
        alone = sample(rows[row : row + 1], states[row : row + 1])
        assert alone == ([together.token_ids[row]], [together.logprobs[row]])
    order = list(range(count))
    random.shuffle(order)
    shuffled = sample(rows[order], [states[row] for row in order])
    assert shuffled.token_ids == [together.token_ids[row] for row in order]
    assert shuffled.logprobs == [together.logprobs[row] for row in order]


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        ({}, range(6)),
        ({"top_k": 100}, range(6)),
        ({"top_k": 3}, [5, 2, 0]),
        ({"top_p": 0.55}, [5, 2]),
        ({"min_p": 0.26}, [5, 2, 0]),
        ({"typical_p": 0.1}, [2]),
    ],
    ids=str,
)
def test_draws_follow_the_probabilities(parameters: dict[str, Any], kept: list[int]) -> None:
    probabilities = np.array([0.12, 0.06, 0.25, 0.11, 0.02, 0.44])
    count = 8000
    logits = np.tile(np.log(probabilities).astype(np.float32), (count, 1))
    drawn = sample(logits, [make_state(seed, **parameters) for seed in range(count)]).token_ids
    observed = np.bincount(drawn, minlength=6)
    expected = np.zeros(6)
    expected[list(kept)] = probabilities[list(kept)] / probabilities[list(kept)].sum() * count
    assert (observed[expected == 0] == 0).all()
    kept_rows = expected > 0
    chi_square = ((observed - expected)[kept_rows] ** 2 / expected[kept_rows]).sum()
    assert chi_square < 20.5  # 5 degrees of freedom, one in a thousand


def test_draws_of_one_sequence_follow_the_probabilities() -> None:
    state = make_state(seed=2**64 - 1)
    logits = np.log(np.array([[0.5, 0.3, 0.2]], dtype=np.float32))
    for _ in range(1000):
        state.output_token_ids.append(sample(logits, [state]).token_ids[0])
    observed = np.bincount(state.output_token_ids, minlength=3)
    expected = np.array([500, 300, 200])
    assert ((observed - expected) ** 2 / expected).sum() < 13.8  # 2 degrees of freedom, one in a thousand


def test_equal_logits_rank_by_token_id() -> None:
    row = [1.0, 3.0, 3.0, 3.0, 3.0, 0.0]
    assert tokens_of(row, temperature=0.0) == {1}
    assert tokens_of(row, top_k=1) == {1}
    assert tokens_of(row, top_k=3) == {1, 2, 3, 4}
    assert tokens_of([0.0] * 4, top_p=0.5) == {0, 1}
    assert max(tokens_of([0.0] * 600, top_k=2)) > 256  # more than the first look


def test_a_tiny_top_p_is_greedy() -> None:
    assert tokens_of([0.0, 1.0, 0.9, 1.0], top_p=1e-9) == {1}


def test_a_tiny_temperature_is_greedy() -> None:
    assert tokens_of([3e38, 2.9e38, -3e38], temperature=1e-4) == {0}
    assert tokens_of([1.0, 1.1, 1.0], temperature=1e-60, top_p=0.9) == {1}


def test_a_huge_temperature_is_uniform() -> None:
    assert tokens_of([0.0, 10.0, 20.0, -10.0], temperature=1e4) == {0, 1, 2, 3}


@pytest.mark.parametrize("parameters", [{"temperature": 0.0}, {}, {"top_p": 0.9}, {"min_p": 0.1}], ids=str)
@pytest.mark.parametrize(
    ("row", "possible"),
    [
        ([np.nan, 1.0, -np.inf, np.nan, 0.9], {1, 4}),
        ([np.inf, 1e30, np.inf, np.nan, -np.inf], {0, 2}),
        ([-np.inf, -np.inf, -np.inf, 5.0, -np.inf], {3}),
        ([np.nan] * 5, {4}),
        ([-np.inf] * 5, {4}),
    ],
    ids=str,
)
def test_rows_that_are_no_distribution_still_get_a_token(
    parameters: dict[str, Any], row: list[float], possible: set[int]
) -> None:
    drawn = tokens_of(row, **parameters)
    assert drawn == ({min(possible)} if parameters.get("temperature") == 0.0 else possible)


def test_a_broken_row_does_not_disturb_its_neighbours() -> None:
    logits = np.array([[0.0, 2.0, 1.0], [np.nan] * 3, [5.0, 0.0, 1.0]], dtype=np.float32)
    states = [make_state(temperature=0.0, logprobs=1) for _ in range(3)]
    for state in states:
        state.eos_token_ids = ()
    sampled = sample(logits, states)
    assert sampled.token_ids == [1, 0, 0]
    assert sampled.logprobs[1] == ([0, 0][:1], [0.0], [1])


def test_when_all_is_banned_the_sequence_ends() -> None:
    for temperature in (0.0, 1.0):
        state = make_state(temperature=temperature)
        state.bad_words_ids = tuple((token,) for token in range(6))
        assert sample(np.zeros((1, 6), dtype=np.float32), [state]).token_ids == [4]


def test_end_and_stop_tokens_wait_for_min_tokens() -> None:
    row = np.array([[0.0, 1.0, 2.0, 5.0, 6.0]], dtype=np.float32)
    state = make_state(temperature=0.0, min_tokens=2, stop_token_ids=[3])
    chosen = []
    for _ in range(3):
        chosen.append(sample(row, [state]).token_ids[0])
        state.output_token_ids.append(chosen[-1])
    assert chosen == [2, 2, 4]


def test_the_last_token_of_a_bad_word_is_banned_after_the_others() -> None:
    row = np.array([[0.0, 1.0, 2.0, 5.0]], dtype=np.float32)
    state = make_state(temperature=0.0)
    state.eos_token_ids = ()
    state.bad_words_ids = ((1, 2, 3),)
    for output, expected in (([], 3), ([2], 3), ([1, 2], 2), ([0, 1, 2], 2), ([1, 2, 0], 3)):
        state.output_token_ids[:] = output
        assert sample(row, [state]).token_ids == [expected], output


def test_bans_outside_the_vocabulary_are_harmless() -> None:
    state = make_state(temperature=0.0, min_tokens=1)
    state.bad_words_ids = ((99,), (-1,))
    assert sample(np.array([[0.0, 1.0]], dtype=np.float32), [state]).token_ids == [1]


def test_penalties_follow_a_growing_output() -> None:
    """100 tokens at once and one after another are counted alike."""
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(100, 200)).astype(np.float32)
    parameters = {"temperature": 0.0, "frequency_penalty": 0.4, "repetition_penalty": 1.2}
    sampler = Sampler(torch.device("cpu"))
    growing = make_state(**parameters)
    for row in logits:
        chosen = sampler.sample(torch.from_numpy(row[None].copy()), [growing]).token_ids[0]
        fresh = make_state(output=list(growing.output_token_ids), **parameters)
        assert chosen == sample(row[None], [fresh]).token_ids[0] == next_token(row, fresh)
        growing.output_token_ids.append(chosen)
    assert len(set(growing.output_token_ids)) > 64  # the history has grown past its first size


def test_a_bias_too_large_for_a_logit_forces_or_bans_its_token() -> None:
    assert tokens_of([0.0, 1.0, 2.0], logit_bias={0: 1e300}) == {0}
    assert tokens_of([0.0, 1.0, 1.0], logit_bias={0: -1e300}) == {1, 2}


def test_a_changed_batch_is_noticed() -> None:
    sampler = Sampler(torch.device("cpu"))
    row = [0.0, 1.0, 0.5]
    greedy, biased = make_state(temperature=0.0), make_state(temperature=0.0, logit_bias={0: 9.0})
    assert sampler.sample(torch.tensor([row, row]), [greedy, biased]).token_ids == [1, 0]
    assert sampler.sample(torch.tensor([row, row]), [biased, greedy]).token_ids == [0, 1]
    assert sampler.sample(torch.tensor([row]), [biased]).token_ids == [0]
    assert sampler.sample(torch.empty(0, 3), []) == ([], [])
