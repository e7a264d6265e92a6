"""The order of tokens in a row: logit descending, then token id ascending. Everything ranks by it."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Ranking(NamedTuple):
    """The head of each row's order.

    Attributes:
        logits: float32 [N, C], descending.
        token_ids: int64 [N, C].
        certain: int64 [N]: so many leading entries are surely right. Behind them, where logits equal the
            last one, the choice among equals is arbitrary.
        complete: no other token of the row matters to the one who asked.
    """

    logits: torch.Tensor
    token_ids: torch.Tensor
    certain: torch.Tensor
    complete: bool


def rank_all(logits: torch.Tensor) -> Ranking:
    """The whole order of each row [N, V]: a full sort, some milliseconds a row."""
    ordered, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    certain = torch.full((len(logits),), logits.shape[1], device=logits.device)
    return Ranking(ordered, token_ids, certain, complete=True)


def rank_some(logits: torch.Tensor, token_ids: torch.Tensor) -> Ranking:
    """The order of one row's [V] tokens `token_ids`, which ascend; the rest do not matter."""
    ranking = rank_all(logits[token_ids][None])
    return ranking._replace(token_ids=token_ids[ranking.token_ids])


def rank_leading(logits: torch.Tensor, count: int) -> Ranking:
    """The first `count` entries of each row's order, without sorting the row."""
    if count >= logits.shape[1]:
        return rank_all(logits)
    values, token_ids = logits.topk(count, dim=-1)
    token_ids, by_id = token_ids.sort(dim=-1)
    values, by_value = values.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    certain = (values > values[:, -1:]).sum(dim=-1)
    return Ranking(values, token_ids.gather(1, by_value), certain, complete=False)


def first_token_ids(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Exactly the first `count` token ids of each row's order, int64 [N, count]."""
    margin = 32  # logits from bfloat16 weights have many equals
    ranking = rank_leading(logits, min(count + margin, logits.shape[1]))
    token_ids = ranking.token_ids[:, :count]
    unsure = (ranking.certain < min(count, logits.shape[1])).nonzero()[:, 0]
    if len(unsure):
        token_ids[unsure] = rank_all(logits[unsure]).token_ids[:, :count]
    return token_ids


def most_likely(logits: torch.Tensor) -> torch.Tensor:
    """The first token of each row's order, int64 [N]; a NaN counts as the largest.

    NumPy's argmax is vectorised: 0.2 ms for 64 rows of 49,152 on two cores, torch's takes 2.0 ms.
    """
    if logits.device.type == "cpu":
        return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def repair(logits: torch.Tensor, peaks: torch.Tensor, fallback_ids: list[int]) -> torch.Tensor:
    """Make each row a distribution, in place; rows that are one already cost nothing.

    A NaN becomes impossible; where there is an infinite logit only infinite ones are possible; where no
    token is possible (the model failed, or everything is banned) the row's fallback token is.

    Args:
        logits: float32 [N, V], modified in place.
        peaks: float32 [N], the largest logit of each row, NaN where the row has one.
        fallback_ids: N token ids.

    Returns: float32 [N], the rows' peaks, all finite.
    """
    broken = (~peaks.isfinite()).nonzero()[:, 0].tolist()
    if not broken:
        return peaks
    peaks = peaks.clone()
    for row in broken:
        values = logits[row]
        values[values.isnan()] = -torch.inf
        endless = values == torch.inf
        if endless.any():
            values.fill_(-torch.inf)
            values[endless] = 0.0
        elif not (values > -torch.inf).any():
            values[fallback_ids[row]] = 0.0
        peaks[row] = values.max()
    return peaks
