"""Logits to tokens for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pageport.core.sampling.bans import apply_bans, apply_logit_bias
from pageport.core.sampling.batch import Batch, RandomRows
from pageport.core.sampling.chunks import row_chunks
from pageport.core.sampling.draws import Passed, draw_filtered, draw_unfiltered
from pageport.core.sampling.grammar_masks import apply_grammars
from pageport.core.sampling.logprobs import (
    TokenLogprobs,
    filtered_logprobs,
    processed_logprobs,
    token_logprobs,
)
from pageport.core.sampling.penalties import apply_penalties
from pageport.core.sampling.ranking import most_likely, repair
from pageport.core.sampling.state import SamplingState
from pageport.core.sampling.watermark import GreenLists, apply_watermark


class SampledTokens(NamedTuple):
    """One token a row; log-probabilities are None where they were not asked for."""

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]


class Sampler:
    """Chooses the next token of every row, in the order of vLLM V1.

    Log-probabilities of the raw logits; then bans (bad words, `min_tokens`), logit bias, watermark, penalties,
    grammar; then the likeliest token where the temperature is 0 (at equal logits the lowest id), else temperature,
    min-p, top-k, top-p, typical-p and one random draw. Processed log-probabilities are of what is left then.

    A row's token depends on its own logits and state only: not on the batch's other rows, their number or
    order. Every row gets a token: where none is possible (the model gave no number, or every token is
    banned) it is the sequence's first end token, or token 0 if it has none.

    Args:
        device: where the logits are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._batch = Batch([], device)
        self._green_lists = GreenLists()

    def sample(self, logits: torch.Tensor, states: Sequence[SamplingState]) -> SampledTokens:
        """Choose one token for each row.

        Args:
            logits: float32 [R, V], V the vocabulary; may be modified in place.
            states: the rows' sequences.
        """
        if not states:
            return SampledTokens([], [])
        batch = self._batch_of(states)
        raw = logits[batch.with_logprobs.indices] if batch.with_logprobs else None
        if batch.banned:
            apply_bans(logits, batch.banned.indices, batch.banned.states)
        if batch.biased:
            apply_logit_bias(logits, batch.biased.indices, batch.biased.states)
        if batch.watermarked:
            apply_watermark(logits, batch.watermarked.indices, batch.watermarked.states, self._green_lists)
        if batch.penalised:
            apply_penalties(logits, batch.penalised.indices, batch.penalised.states)
        if batch.guided:
            matchers = [state.grammar for state in batch.guided.states if state.grammar is not None]
            apply_grammars(logits, batch.guided.indices, matchers)
        token_ids, kept = self._choose(logits, batch)
        logprobs: list[TokenLogprobs | None] = [None] * len(states)
        if raw is not None:
            self._report(raw, batch, token_ids, logprobs)
        if batch.with_processed:
            self._report_processed(logits, batch, token_ids, kept, logprobs)
        return SampledTokens(token_ids, logprobs)

    def prompt_logprobs(
        self, logits: torch.Tensor, target_ids: Sequence[int], num: int
    ) -> list[TokenLogprobs]:
        """Log-probabilities of given tokens.

        Args:
            logits: float32 [T, V], at the positions before the tokens; may be modified in place.
            target_ids: the T tokens that followed.
            num: likeliest tokens to report beside each.
        """
        repair(logits, logits.amax(dim=-1), [0] * len(target_ids))
        return token_logprobs(logits, target_ids, [num] * len(target_ids))

    def _batch_of(self, states: Sequence[SamplingState]) -> Batch:
        """The sorted batch, from the last call where the sequences are the same."""
        if self._batch.states != list(states):
            self._batch = Batch(states, self._device)
        return self._batch

    def _choose(self, logits: torch.Tensor, batch: Batch) -> tuple[list[int], dict[int, Passed]]:
        """Token ids, and for some filtered rows what passed the filters; see `draw_filtered`."""
        if len(batch.greedy.indices) == len(logits):
            return self._choose_greedy(logits, batch).tolist(), {}
        chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        kept: dict[int, Passed] = {}
        if batch.greedy:
            rows = logits[batch.greedy.indices]
            chosen[batch.greedy.indices] = self._choose_greedy(rows, batch)
        if batch.unfiltered.indices:
            rows, peaks = self._random_rows(logits, batch.unfiltered)
            chosen[batch.unfiltered.indices] = draw_unfiltered(rows, peaks, batch.unfiltered)
        if batch.filtered.indices:
            rows, peaks = self._random_rows(logits, batch.filtered)
            chosen[batch.filtered.indices], passed = draw_filtered(rows, peaks, batch.filtered)
            kept = {batch.filtered.indices[row]: tokens for row, tokens in passed.items()}
        return chosen.tolist(), kept

    def _random_rows(self, logits: torch.Tensor, group: RandomRows) -> tuple[torch.Tensor, torch.Tensor]:
        """The group's logits, made distributions, and their peaks."""
        rows = logits if len(group.indices) == len(logits) else logits[group.indices]
        return rows, repair(rows, rows.amax(dim=-1), [state.fallback_token_id for state in group.states])

    def _choose_greedy(self, rows: torch.Tensor, batch: Batch) -> torch.Tensor:
        token_ids = most_likely(rows)
        peaks = rows.gather(1, token_ids[:, None])[:, 0]
        if bool(peaks.isfinite().all()):
            return token_ids
        repair(rows, peaks, [state.fallback_token_id for state in batch.greedy.states])
        return most_likely(rows)

    def _report(
        self,
        raw: torch.Tensor,
        batch: Batch,
        token_ids: list[int],
        logprobs: list[TokenLogprobs | None],
    ) -> None:
        rows = batch.with_logprobs
        repair(raw, raw.amax(dim=-1), [state.fallback_token_id for state in rows.states])
        chosen = [token_ids[row] for row in rows.indices]
        nums = [state.params.logprobs or 0 for state in rows.states]
        for row, position in zip(rows.indices, token_logprobs(raw, chosen, nums), strict=True):
            logprobs[row] = position

    def _report_processed(
        self,
        logits: torch.Tensor,
        batch: Batch,
        token_ids: list[int],
        kept: dict[int, Passed],
        logprobs: list[TokenLogprobs | None],
    ) -> None:
        for row, passed in kept.items():
            params = batch.states[row].params
            passed_scores = passed.logits.double().cpu().numpy() / params.temperature
            logprobs[row] = filtered_logprobs(
                passed_scores, passed.token_ids.cpu().numpy(), token_ids[row], params.logprobs or 0
            )
        whole = [row for row in batch.with_processed.indices if row not in kept]
        if not whole:
            return
        temperatures = [_divisor(batch.states[row]) for row in whole]
        is_scaled = any(temperature != 1.0 for temperature in temperatures)
        # Chunks keep a copy that was divided in the cache; without one there is nothing to keep.
        for chunk in row_chunks(len(whole), logits.device) if is_scaled else [slice(len(whole))]:
            rows = whole[chunk]
            states = [batch.states[row] for row in rows]
            scores = logits[rows[0] : rows[-1] + 1] if rows[-1] - rows[0] == len(rows) - 1 else logits[rows]
            if is_scaled:
                scores = scores / torch.tensor(temperatures[chunk], device=logits.device)[:, None]
            repair(scores, scores.amax(dim=-1), [state.fallback_token_id for state in states])
            chosen = [token_ids[row] for row in rows]
            nums = [state.params.logprobs or 0 for state in states]
            for row, position in zip(rows, processed_logprobs(scores, chosen, nums), strict=True):
                logprobs[row] = position


def _divisor(state: SamplingState) -> float:
    return 1.0 if state.params.is_greedy else state.params.temperature
