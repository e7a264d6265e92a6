"""Penalties for tokens that were already there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pageport.core.sampling.history import TokenHistory
from pageport.core.sampling.state import SamplingState
from pageport.core.sampling_modes import PenaltyStyle


def has_penalties(state: SamplingState) -> bool:
    params = state.params
    return (
        params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    )


def apply_penalties(logits: torch.Tensor, rows: Sequence[int], states: Sequence[SamplingState]) -> None:
    """Change the logits of seen tokens, in place, in the order and by the formulas of vLLM V1.

    Repetition (Keskar et al., CTRL, arXiv 1909.05858): over prompt and output, positive logits are divided
    by the penalty and others multiplied. Frequency and presence (OpenAI's API): over the output,
    `logit -= frequency * count + presence * (count > 0)`. With `PenaltyStyle.SHARE` it is TGI's
    `logit -= frequency * count / length`, and the count is over prompt and output.

    Args:
        logits: float32 [R, V].
        rows: which rows; `states` are theirs.
    """
    histories = [_updated_history(state) for state in states]
    sizes = [len(history.token_ids) for history in histories]
    parameters = np.array(
        [(s.params.repetition_penalty, _frequency_penalty(s), s.params.presence_penalty) for s in states],
        dtype=np.float32,
    )
    device = logits.device
    at_rows = torch.from_numpy(np.repeat(np.asarray(rows, dtype=np.int64), sizes)).to(device)
    at_ids = torch.from_numpy(np.concatenate([history.token_ids for history in histories])).to(device)
    counts = torch.from_numpy(np.concatenate([history.counts for history in histories])).to(device)
    repetition, frequency, presence = torch.from_numpy(np.repeat(parameters, sizes, axis=0)).to(device).T

    seen = logits[at_rows, at_ids]
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    seen -= frequency * counts
    seen -= presence * (counts > 0)
    logits[at_rows, at_ids] = seen


def _frequency_penalty(state: SamplingState) -> float:
    """What each occurrence of a token takes from its logit."""
    penalty = state.params.frequency_penalty
    if state.params.penalty_style is PenaltyStyle.COUNT:
        return penalty
    return penalty / (len(state.prompt_token_ids) + len(state.output_token_ids))


def _updated_history(state: SamplingState) -> TokenHistory:
    if state.history is None:
        count_prompt = state.params.penalty_style is PenaltyStyle.SHARE
        state.history = TokenHistory(state.prompt_token_ids, count_prompt=count_prompt)
    state.history.update(state.output_token_ids)
    return state.history
