from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pageport.core.sampling.weights import ONE, draw, integer_weights

LARGEST_UNIFORM = 1 - 2.0**-53


def place(weights: list[int], uniform: float) -> int:
    cumulative = torch.tensor([weights]).cumsum(dim=-1)
    return int(draw(cumulative, cumulative[:, -1], torch.tensor([uniform], dtype=torch.float64)))


@pytest.mark.parametrize(
    ("uniform", "expected"),
    [(0.0, 1), (0.59, 1), (0.6, 3), (0.79, 3), (0.8, 4), (LARGEST_UNIFORM, 4)],
)
def test_a_draw_finds_its_share_and_never_a_weight_of_zero(uniform: float, expected: int) -> None:
    assert place([0, 3, 0, 1, 1, 0], uniform) == expected


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=9), st.integers(1, 2**58), st.integers(0, 9))
def test_the_largest_uniform_finds_the_last_positive_weight(weights: list[int], large: int, at: int) -> None:
    weights.insert(at, large)
    found = place(weights, LARGEST_UNIFORM)
    assert weights[found] > 0
    assert sum(weights[:found]) <= LARGEST_UNIFORM * sum(weights) < sum(weights)


def test_weights_are_multiples_of_the_likeliest_tokens() -> None:
    logits = torch.tensor([[2.0, 1.0, -torch.inf, -100.0], [3e38, 2.9e38, -3e38, 0.0]])
    weights = integer_weights(logits, logits.amax(dim=-1), torch.tensor([0.5, 1e-45]))
    assert weights[0].tolist() == pytest.approx([ONE, ONE * math.exp(-2), 0, 0], rel=1e-6)
    assert weights[1].tolist() == [ONE, 0, 0, 0]


def test_weights_do_not_depend_on_where_a_row_lies_in_memory() -> None:
    """Vectorised loops treat the ends of unaligned memory differently; the values must not differ."""
    row = torch.linspace(-30, 0, 1003)
    temperature = torch.tensor([0.7])
    alone = integer_weights(row[None], row.amax()[None], temperature)
    for offset in range(17):
        rows = torch.zeros(3, 1003 + offset)
        rows[1, offset:] = row
        shifted = integer_weights(rows[:, offset:], torch.zeros(3), temperature.expand(3))
        assert torch.equal(shifted[1], alone[0])
