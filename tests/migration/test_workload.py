"""The load is what it says: sums, ranges, repeatability."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageport.migration.poc.run import Plan, load_that_fits
from pageport.migration.poc.workload import LengthRange, build_load, draw_lengths, make_prompt_ids
from tests.migration.outcomes import make_request


@dataclass
class _Words:
    ids: list[int]


class WordTokenizer:
    """One token a word."""

    def __init__(self) -> None:
        self._words: list[str] = []

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> _Words:
        ids = []
        for word in sequence.split():
            if word not in self._words:
                self._words.append(word)
            ids.append(self._words.index(word))
        return _Words(ids)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self._words[i] for i in ids)


@given(
    count=st.integers(1, 60),
    mean=st.floats(10, 90),
    seed=st.integers(0, 2**32),
)
def test_lengths_have_the_sum_asked_for(count: int, mean: float, seed: int) -> None:
    lengths = draw_lengths(count, LengthRange(mean, low=8, high=100), random.Random(seed))
    assert sum(lengths) == round(mean * count)
    assert all(8 <= length <= 100 for length in lengths)


def test_lengths_are_mixed() -> None:
    lengths = draw_lengths(200, LengthRange(100, low=10, high=1000), random.Random(1))
    below = sum(length < 100 for length in lengths)
    # A log-normal's mean lies above its median: for sigma 0.8 about 66 % are below it.
    assert 0.55 < below / 200 < 0.77


def test_impossible_sums_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot sum to 50"):
        draw_lengths(10, LengthRange(5, low=8, high=100), random.Random(1))


@pytest.mark.parametrize("tokens", [3, 40, 900])
def test_prompts_have_their_length(tokens: int) -> None:
    tokenizer = WordTokenizer()
    assert len(make_prompt_ids(tokens, tokenizer, random.Random(5))) == tokens


def test_a_seed_names_a_load() -> None:
    def load(seed: int) -> list[object]:
        shape = LengthRange(60, 16, 200), LengthRange(30, 8, 100)
        return list(build_load(12, *shape, WordTokenizer(), seed))

    assert load(3) == load(3)
    assert load(3) != load(4)


def test_a_load_counts_its_tokens() -> None:
    load = build_load(12, LengthRange(60, 16, 200), LengthRange(30, 8, 100), WordTokenizer(), 1)
    assert [request.index for request in load] == list(range(12))
    assert sum(request.output_tokens for request in load) == 360
    assert sum(request.prompt_tokens for request in load) == 720
    assert len({request.prompt for request in load}) == 12


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (1000.0, 20),
        (12.0, 15),
        (0.1, 6),
    ],  # all of them; 120 tokens of 8; never less than one and a half rounds of streams
)
def test_the_load_is_cut_to_the_slowest_machine(rate: float, expected: int) -> None:
    plan = Plan(Path(), "float32", concurrency=4, before_budget_s=10.0)
    load = [make_request(index, output_tokens=8) for index in range(20)]
    assert load_that_fits(load, rate, plan) == load[:expected]
