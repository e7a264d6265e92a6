"""Log-probabilities of the model itself, before any sampling parameter is applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pageport.core.sampling.chunks import row_chunks
from pageport.core.sampling.ranking import first_token_ids


class TokenLogprobs(NamedTuple):
    """One position: the chosen token first, then the likeliest ones in descending order, each token once.

    Attributes:
        ranks: 1 is the likeliest token; among equals the lower token id ranks first.
    """

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


def token_logprobs(
    logits: torch.Tensor, chosen_ids: Sequence[int], nums: Sequence[int]
) -> list[TokenLogprobs]:
    """The log-probability and rank of each row's chosen token and of its `nums[row]` likeliest tokens.

    "Raw" log-probabilities as vLLM V1 reports them: log_softmax of the unprocessed logits.

    Args:
        logits: float32 [N, V], each row with a finite largest logit and no NaN.
    """
    positions: list[TokenLogprobs] = []
    for chunk in row_chunks(len(logits), logits.device):
        positions += _chunk_logprobs(logits[chunk], chosen_ids[chunk], nums[chunk])
    return positions


def _chunk_logprobs(
    logits: torch.Tensor, chosen_ids: Sequence[int], nums: Sequence[int]
) -> list[TokenLogprobs]:
    everything = torch.log_softmax(logits, dim=-1)
    chosen = torch.tensor(chosen_ids, device=logits.device)[:, None]
    most = min(max(nums), logits.shape[1])
    listed = torch.cat([chosen, first_token_ids(logits, most)], dim=1) if most else chosen
    values = everything.gather(1, listed).tolist()
    return [
        _position(tokens, row_values, rank, num)
        for tokens, row_values, rank, num in zip(
            listed.tolist(), values, _ranks(logits, chosen).tolist(), nums, strict=True
        )
    ]


def _ranks(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """[N], one plus the number of tokens that come before `token_ids` [N, 1] in the row's order."""
    own = logits.gather(1, token_ids)
    lower = torch.arange(logits.shape[1], device=logits.device) < token_ids
    return 1 + ((logits > own) | ((logits == own) & lower)).sum(dim=-1)


def _position(listed: list[int], values: list[float], rank: int, num: int) -> TokenLogprobs:
    chosen, *leading = listed[: num + 1]
    others = [place for place, token in enumerate(leading, start=1) if token != chosen]
    return TokenLogprobs(
        [chosen, *(listed[place] for place in others)],
        [values[0], *(values[place] for place in others)],
        [rank, *others],
    )
