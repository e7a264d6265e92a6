"""Log-probabilities: of the model itself, or of what the sampling parameters made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pageport.core.sampling.chunks import row_chunks
from pageport.core.sampling.ranking import first_token_ids
from pageport.core.sampling_params import LogprobsMode, SamplingParams


class TokenLogprobs(NamedTuple):
    """One position: the chosen token first, then the likeliest ones in descending order, each token once.

    Attributes:
        ranks: 1 is the likeliest token; among equals the lower token id ranks first. 0: nobody asked how the chosen
            token ranks (processed log-probabilities without alternatives).
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


def reports_raw(params: SamplingParams) -> bool:
    return params.logprobs is not None and params.logprobs_mode is LogprobsMode.RAW


def reports_processed(params: SamplingParams) -> bool:
    return params.logprobs is not None and params.logprobs_mode is LogprobsMode.PROCESSED


def processed_logprobs(
    scores: torch.Tensor, chosen_ids: Sequence[int], nums: Sequence[int]
) -> list[TokenLogprobs]:
    """As `token_logprobs`, of scores that sampling parameters have changed.

    Impossible tokens are not listed; tokens that are as likely as the last one listed are listed too.

    Args:
        scores: float32 [N, V], already divided by the temperature; -inf: impossible.
    """
    everything = torch.log_softmax(scores, dim=-1)
    chosen = torch.tensor(chosen_ids, device=scores.device)[:, None]
    own = everything.gather(1, chosen)[:, 0].tolist()
    return [
        _with_alternatives(row, None, token, num) if num else TokenLogprobs([token], [value], [0])
        for row, token, value, num in zip(everything, chosen_ids, own, nums, strict=True)
    ]


def filtered_logprobs(
    scores: torch.Tensor, token_ids: torch.Tensor, chosen_id: int, num: int
) -> TokenLogprobs:
    """As `processed_logprobs`, for one row of which only some tokens passed the filters.

    Args:
        scores: float32 [n], of the tokens `token_ids` [n], divided by the temperature.
    """
    return _with_alternatives(torch.log_softmax(scores, dim=-1), token_ids, chosen_id, num)


def _with_alternatives(
    values: torch.Tensor, token_ids: torch.Tensor | None, chosen_id: int, num: int
) -> TokenLogprobs:
    """One position from log-probabilities [n] of the tokens `token_ids` [n] (None: of the whole vocabulary)."""
    ids = torch.arange(len(values), device=values.device) if token_ids is None else token_ids
    own = float(values[chosen_id] if token_ids is None else values[ids == chosen_id][0])
    places: list[tuple[float, int]] = []
    if num:
        threshold = values.topk(min(num, len(values))).values[-1]
        listed = ((values >= threshold) & (values > -torch.inf)).nonzero()[:, 0]
        places = sorted(zip((-values[listed]).tolist(), ids[listed].tolist(), strict=True))
    above = int(((values > own) | ((values == own) & (ids < chosen_id))).sum())
    others = [(-value, token, rank) for rank, (value, token) in enumerate(places, 1) if token != chosen_id]
    return TokenLogprobs(
        [chosen_id, *(token for _, token, _ in others)],
        [own, *(value for value, _, _ in others)],
        [above + 1, *(rank for _, _, rank in others)],
    )
