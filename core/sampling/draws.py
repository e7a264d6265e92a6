"""One token drawn for each row: from the whole vocabulary, or from what the filters left of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pageport.core.sampling.batch import RandomRows
from pageport.core.sampling.filters import count_kept, keep_typical
from pageport.core.sampling.ranking import Ranking, rank_all, rank_leading
from pageport.core.sampling.weights import draw, integer_weights

# Tokens looked at before a row is sorted in full. A nucleus of natural text is seldom larger.
_LEADING = 256

# Rows worked on at once, so that their weights (8 bytes a token) stay in the cache.
_CHUNK_ROWS = 8


def draw_unfiltered(logits: torch.Tensor, peaks: torch.Tensor, rows: RandomRows) -> torch.Tensor:
    """Draw from every token, in vocabulary order.

    Args:
        logits: float32 [N, V]; peaks: float32 [N], their largest.

    Returns: int64 [N], token ids.
    """
    uniforms = rows.uniforms().to(logits.device)
    token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for chunk in _chunks(len(logits)):
        cumulative = integer_weights(logits[chunk], peaks[chunk], rows.temperatures[chunk]).cumsum(dim=-1)
        token_ids[chunk] = draw(cumulative, cumulative[:, -1], uniforms[chunk])
    return token_ids


def draw_filtered(logits: torch.Tensor, peaks: torch.Tensor, rows: RandomRows) -> torch.Tensor:
    """Draw from the tokens that pass the filters, in the row's order; arguments as `draw_unfiltered`.

    The likeliest tokens are looked at first. Rows whose filters may keep more than those are sorted in
    full; which way a row goes does not change what is drawn.
    """
    draws = _FilteredDraws(logits, peaks, rows)
    largest_k = max((s.params.top_k for s in rows.states if s.params.top_k <= 4 * _LEADING), default=0)
    token_ids, sure = draws.from_ranking(
        rank_leading(logits, max(_LEADING, largest_k + 32)), torch.arange(len(logits), device=logits.device)
    )
    unsure = (~sure).nonzero()[:, 0]
    for chunk in _chunks(len(unsure)):
        some = unsure[chunk]
        token_ids[some], _ = draws.from_ranking(rank_all(logits[some]), some)
    return token_ids


class _FilteredDraws:
    """The rows' parameters and totals, for drawing from a shorter or longer ranking of some of them."""

    def __init__(self, logits: torch.Tensor, peaks: torch.Tensor, rows: RandomRows) -> None:
        self._peaks = peaks
        self._rows = rows
        self._uniforms = rows.uniforms().to(logits.device)
        self._totals = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        self._open = torch.tensor(
            [s.params.top_k <= 0 and s.params.min_p == 0.0 for s in rows.states], device=logits.device
        )
        self._vocab_size = logits.shape[1]
        needed = self._open.nonzero()[:, 0]
        for chunk in _chunks(len(needed)):
            some = needed[chunk]
            weights = integer_weights(logits[some], peaks[some], rows.temperatures[some])
            self._totals[some] = weights.sum(dim=-1)

    def from_ranking(self, ranking: Ranking, some: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids of the rows `some` [N], and whether the ranking was long enough to be sure."""
        weights = integer_weights(ranking.logits, self._peaks[some], self._rows.temperatures[some])
        cumulative = weights.cumsum(dim=-1)
        filters = self._rows.filters[some]
        bounded, kept = count_kept(weights, cumulative, self._totals[some], filters)
        width = weights.shape[1]
        known = (bounded < width) | self._open[some] | (width == self._vocab_size)
        sure = known & (kept <= ranking.certain)
        self._apply_typical(weights, cumulative, kept, sure, some)
        totals = cumulative.gather(1, (kept - 1)[:, None])[:, 0]
        places = draw(cumulative, totals, self._uniforms[some])
        return ranking.token_ids.gather(1, places[:, None])[:, 0], sure

    def _apply_typical(
        self,
        weights: torch.Tensor,
        cumulative: torch.Tensor,
        kept: torch.Tensor,
        sure: torch.Tensor,
        some: torch.Tensor,
    ) -> None:
        """Rewrite the running sums of rows with typical-p, row by row: it is rare."""
        for place, row in enumerate(some.tolist()):
            typical_p = self._rows.states[row].params.typical_p
            if typical_p < 1.0 and sure[place]:
                count = int(kept[place])
                remaining = keep_typical(weights[place, :count].cpu().numpy(), typical_p)
                cumulative[place, :count] = torch.from_numpy(remaining.cumsum()).to(cumulative.device)


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, _CHUNK_ROWS):
        yield slice(start, start + _CHUNK_ROWS)
