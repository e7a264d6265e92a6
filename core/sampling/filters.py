"""Which of the likeliest tokens stay: min-p, top-k, top-p, typical-p, in this order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pageport.core.sampling.weights import ONE

if TYPE_CHECKING:
    from pageport.core.sampling_params import SamplingParams

_ROUNDING = 1e-9  # more than float64 can lose in a share of a sum of weights
_FLOOR_ROUNDS = 6


def has_filters(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0 or params.typical_p < 1.0


@dataclass(frozen=True, slots=True)
class FilterParams:
    """The parameters of N rows as tensors [N].

    Attributes:
        top_k: int64, above every vocabulary where it is off.
        unbounded: bool, neither min-p nor top-k is on.
    """

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    unbounded: torch.Tensor

    @classmethod
    def gather(cls, params: Sequence[SamplingParams], device: torch.device) -> FilterParams:
        endless = torch.iinfo(torch.int64).max
        top_k = torch.tensor(
            [min(p.top_k, endless) if p.top_k > 0 else endless for p in params],
            dtype=torch.int64,
            device=device,
        )
        min_p = torch.tensor([p.min_p for p in params], dtype=torch.float64, device=device)
        top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
        return cls(top_k, top_p, min_p, (top_k == endless) & (min_p == 0))

    def __getitem__(self, rows: torch.Tensor) -> FilterParams:
        return FilterParams(self.top_k[rows], self.top_p[rows], self.min_p[rows], self.unbounded[rows])


class Kept(NamedTuple):
    """How many leading tokens of each row's order are left, int64 [N] each.

    Attributes:
        bounded: after min-p and top-k. Where it is the whole width, the filters may keep more tokens than were seen.
        drawn_from: after top-p too; always at least one.
        listed: the same with tokens that pass, but are too unlikely to be ever drawn.
    """

    bounded: torch.Tensor
    drawn_from: torch.Tensor
    listed: torch.Tensor


def count_kept(
    logits: torch.Tensor,
    weights: torch.Tensor,
    cumulative: torch.Tensor,
    totals: torch.Tensor,
    params: FilterParams,
) -> Kept:
    """How many leading tokens of each row's order pass min-p, top-k and top-p.

    - min-p (Nguyen et al., arXiv 2407.01082): probability at least `min_p` times the largest.
    - top-k: the k likeliest, and all that are as likely as the last of them, as vLLM, TGI and Hugging Face do. But
      top-k 1, which clients send to say "greedy", is one token: among equals the lowest id.
    - top-p (Holtzman et al., arXiv 1904.09751), over what the others left, renormalised: tokens before
      which less than `top_p` of the probability has been counted.

    Args:
        logits: float32 [N, C], in the row's order.
        weights, cumulative: int64 [N, C], of the same tokens; `cumulative` are inclusive sums.
        totals: int64 [N], the weight of the whole vocabulary; only read for unbounded rows.
    """
    likely = ((weights > 0) & (weights >= (params.min_p * ONE)[:, None])).sum(dim=-1)
    kth = logits.gather(1, (params.top_k.clamp(max=logits.shape[1]) - 1)[:, None])
    not_less = ((logits >= kth) & (logits > -torch.inf)).sum(dim=-1)
    top = torch.where(params.top_k == 1, params.top_k, not_less)
    bounded = torch.minimum(likely, top)
    reached = cumulative.gather(1, (bounded - 1)[:, None])[:, 0]
    remaining = torch.where(params.unbounded, totals, reached)
    before = cumulative - weights
    nucleus = (before < (params.top_p * remaining)[:, None]).sum(dim=-1)
    drawn_from = torch.minimum(bounded, nucleus)
    only_top_k = (params.min_p == 0) & (params.top_p >= 1)
    return Kept(bounded, drawn_from, torch.where(only_top_k, top, drawn_from))


def weight_floor(weights: torch.Tensor, params: SamplingParams) -> int:
    """A weight under which no token of this row passes the filters, so that only the others need an order.

    For top-p: a token is kept if it and all after it weigh more than `(1 - top_p) * total`. With n tokens
    at or over the floor, a token lighter than an n-th of what those under the floor leave of that can't be;
    that is a higher floor, and so on. (Only where top-p is over the whole vocabulary: what min-p and top-k
    leave must be seen in full to be renormalised.)

    Args:
        weights: int64 [V].
    """
    floor = max(1, math.ceil(params.min_p * ONE))
    if params.top_k > 0:
        kth = weights.topk(min(params.top_k, len(weights))).values[-1]
        return max(floor, int(kth))
    if params.min_p > 0:
        return floor
    over = weights
    total = int(weights.sum())
    droppable = (1.0 - params.top_p - _ROUNDING) * total
    for _ in range(_FLOOR_ROUNDS):
        higher = math.ceil((droppable - (total - int(over.sum()))) / len(over))
        if higher <= floor:
            break
        floor = higher
        over = over[over >= floor]
    return floor


def keep_typical(weights: npt.NDArray[np.int64], typical_p: float) -> npt.NDArray[np.int64]:
    """Locally typical sampling (Meister et al., arXiv 2202.00666), as Hugging Face and TGI compute it.

    Tokens are taken in the order of how far their surprise is from the entropy, until their probability
    reaches `typical_p`; tokens as far as the last one taken stay too.

    Args:
        weights: int64 [n], positive, of one row's remaining tokens.

    Returns: the weights with those of dropped tokens set to zero.
    """
    total = weights.sum()
    probabilities = weights / total
    surprise = -np.log(probabilities)
    distance = np.abs(surprise - (probabilities * surprise).sum())
    order = np.argsort(distance)
    taken = int((np.cumsum(weights[order]) < typical_p * total).sum())
    limit = distance[order[min(taken, len(order) - 1)]]
    return np.where(distance <= limit, weights, 0)
