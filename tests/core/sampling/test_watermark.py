"""Green lists by their formula, and that a marked text can be told from another."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pageport.core.sampling import Sampler, SamplingState
from pageport.core.sampling.watermark import GreenLists, apply_watermark, green_list
from pageport.core.sampling_params import SamplingParams, Watermark

VOCAB = 500


def make_state(watermark: Watermark | None, output: list[int], seed: int = 0) -> SamplingState:
    return SamplingState(SamplingParams(watermark=watermark, max_tokens=None), seed, [3, 5], output, ())


@pytest.mark.parametrize(
    ("token", "vocab_size", "gamma"), [(0, 10, 0.5), (17, 49152, 0.25), (49151, 999, 0.9)]
)
def test_the_list_is_the_first_share_of_a_seeded_permutation(
    token: int, vocab_size: int, gamma: float
) -> None:
    generator = torch.Generator()
    generator.manual_seed(15485863 * token)
    expected = torch.randperm(vocab_size, generator=generator)[: int(vocab_size * gamma)].tolist()
    assert green_list(token, vocab_size, gamma).tolist() == expected
    lists = GreenLists()
    for _ in range(2):  # made, then remembered
        assert lists.mask(token, vocab_size, gamma).nonzero()[0].tolist() == sorted(expected)


def test_delta_goes_to_the_green_tokens_of_marked_rows_only() -> None:
    logits = torch.arange(3 * VOCAB, dtype=torch.float32).reshape(3, VOCAB)
    before = logits.clone()
    states = [make_state(Watermark(0.3, 1.5), [8, 9]), make_state(Watermark(0.5, -2.0), [])]
    apply_watermark(logits, [2, 0], states, GreenLists())
    added = logits - before
    assert added[1].count_nonzero() == 0
    for row, token, gamma, delta in (
        (2, 9, 0.3, 1.5),
        (0, 5, 0.5, -2.0),
    ):  # without an output the prompt's last
        green = torch.from_numpy(green_list(token, VOCAB, gamma))
        assert (added[row, green] == delta).all()
        assert added[row].count_nonzero() == len(green)


def test_lists_are_forgotten_in_the_order_of_their_use() -> None:
    lists = GreenLists()
    lists.mask(0, 40, 0.5)
    for token in range(1, 1024):
        lists.mask(token, 40, 0.5)
        lists.mask(0, 40, 0.5)
    lists.mask(5000, 40, 0.5)
    remembered = {key.previous_token for key in lists._packed}
    assert len(remembered) == 1024
    assert 0 in remembered and 1 not in remembered


def z_score(watermark: Watermark | None, gamma: float = 0.5) -> float:
    """Standard deviations between the green tokens of 300 draws and what chance gives."""
    state = make_state(watermark, [], seed=7)
    sampler = Sampler(torch.device("cpu"))
    generator = np.random.default_rng(1)
    greens = 0
    for _ in range(300):
        logits = generator.normal(size=(1, VOCAB)).astype(np.float32)
        previous = (state.output_token_ids or state.prompt_token_ids)[-1]
        token = sampler.sample(torch.from_numpy(logits), [state]).token_ids[0]
        greens += token in green_list(previous, VOCAB, gamma)
        state.output_token_ids.append(token)
    return (greens - gamma * 300) / math.sqrt(300 * gamma * (1 - gamma))


def test_a_marked_text_can_be_told_from_another() -> None:
    assert abs(z_score(None)) < 4.0
    assert z_score(Watermark(delta=2.0)) > 10.0  # seven of eight tokens are green
