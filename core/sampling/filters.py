"""Which of the likeliest tokens stay: min-p, top-k, top-p, typical-p, in this order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pageport.core.sampling.weights import ONE
from pageport.core.sampling_params import SamplingParams


def has_filters(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0 or params.typical_p < 1.0


@dataclass(frozen=True, slots=True)
class FilterParams:
    """The parameters of N rows as tensors [N]; `top_k` int64, above every vocabulary where it is off."""

    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    @classmethod
    def gather(cls, params: Sequence[SamplingParams], device: torch.device) -> FilterParams:
        endless = torch.iinfo(torch.int64).max
        return cls(
            torch.tensor([p.top_k if p.top_k > 0 else endless for p in params], device=device),
            torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device),
            torch.tensor([p.min_p for p in params], dtype=torch.float64, device=device),
        )

    def __getitem__(self, rows: torch.Tensor) -> FilterParams:
        return FilterParams(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def count_kept(
    weights: torch.Tensor, cumulative: torch.Tensor, totals: torch.Tensor, params: FilterParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many leading tokens of each row's order pass min-p, top-k and top-p: always at least one.

    - min-p (Nguyen et al., arXiv 2407.01082): probability at least `min_p` times the largest.
    - top-k: the first k of the order; at equal logits the lower ids, where vLLM and Hugging Face keep all.
    - top-p (Holtzman et al., arXiv 1904.09751), over what the others left, renormalised: tokens before
      which less than `top_p` of the probability has been counted.

    Args:
        weights, cumulative: int64 [N, C], in the row's order; `cumulative` are inclusive sums.
        totals: int64 [N], the weight of the whole vocabulary.

    Returns: int64 [N] each: how many are kept after min-p and top-k, and after top-p too. A number equal
        to C says that more than C may be kept, where C is less than the vocabulary.
    """
    width = weights.shape[1]
    likely = ((weights > 0) & (weights >= (params.min_p * ONE)[:, None])).sum(dim=-1)
    bounded = torch.minimum(likely, params.top_k)
    reached = cumulative.gather(1, (bounded - 1)[:, None])[:, 0]
    remaining = torch.where(bounded < width, reached, totals)
    before = cumulative - weights
    nucleus = (before < (params.top_p * remaining)[:, None]).sum(dim=-1)
    return bounded, torch.minimum(bounded, nucleus)


def keep_typical(weights: npt.NDArray[np.int64], typical_p: float) -> npt.NDArray[np.int64]:
    """Locally typical sampling (Meister et al., arXiv 2202.00666), as Hugging Face and TGI compute it.

    Tokens are taken in the order of how far their surprise is from the entropy, until their probability
    reaches `typical_p`; tokens as far as the last one taken stay too.

    Args:
        weights: int64 [n], positive, of one row's remaining tokens.

    Returns: the weights with those of dropped tokens set to zero.
    """
    probabilities = weights / weights.sum()
    surprise = -np.log(probabilities)
    distance = np.abs(surprise - (probabilities * surprise).sum())
    order = np.argsort(distance, kind="stable")
    taken = int((np.cumsum(probabilities[order]) < typical_p).sum())
    limit = distance[order[min(taken, len(order) - 1)]]
    return np.where(distance <= limit, weights, 0)
