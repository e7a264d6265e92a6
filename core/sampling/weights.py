"""Unnormalised probabilities as integers, and the draw from them.

Integers because their sums are exact: the same in any order, on any device, with any number of threads
and beside any other rows. This is what makes a sampled token depend on its own row alone.
"""

from __future__ import annotations

import torch

# The weight of the likeliest token; 40 bits leave room in an int64 for the sum over 2**22 tokens. A token
# 2**40 times less likely than the likeliest one is never drawn.
ONE = 2.0**40

_SMALLEST_TEMPERATURE = torch.finfo(torch.float32).tiny


def integer_weights(logits: torch.Tensor, peaks: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """`exp((logits - peak) / temperature)` in units of 1 / `ONE`.

    The peak is subtracted before the division, so no temperature can overflow.

    Args:
        logits: float32 [N, C], no NaN.
        peaks: float32 [N], finite, the largest logit of each row's whole vocabulary.
        temperatures: float32 [N], positive.

    Returns: int64 [N, C]
    """
    scaled = logits - peaks[:, None]
    scaled /= temperatures.clamp(min=_SMALLEST_TEMPERATURE)[:, None]
    return scaled.exp_().mul_(ONE).to(torch.int64)


def draw(cumulative: torch.Tensor, totals: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Invert the cumulative distribution: the first position whose cumulative weight passes `u * total`.

    A position of zero weight is never the first to pass anything. Nor is the last positive weight ever
    overshot: a uniform is at most 1 - 2**-53, so `u * total` is at least half a unit of the last place of
    float64 below the total, which no rounding makes up for.

    Args:
        cumulative: int64 [N, C], inclusive running sums of the weights.
        totals: int64 [N], positive, at most the row's last sum: the mass that may be drawn.
        uniforms: float64 [N] in [0, 1).

    Returns: int64 [N], positions below C.
    """
    targets = (uniforms * totals).to(torch.int64)
    return torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
