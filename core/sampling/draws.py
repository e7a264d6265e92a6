"""One token drawn for each row: from the whole vocabulary, or from what the filters left of it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from pageport.core.sampling.batch import RandomRows
from pageport.core.sampling.chunks import row_chunks
from pageport.core.sampling.filters import count_kept, keep_typical, weight_floor
from pageport.core.sampling.logprobs import reports_processed
from pageport.core.sampling.ranking import Ranking, rank_leading, rank_some
from pageport.core.sampling.weights import draw, integer_weights

# Tokens of each row looked at first. The filters seldom keep more of a natural text's distribution.
_LEADING = 256


class Passed(NamedTuple):
    """The tokens of one row that its filters left, likeliest first.

    Attributes:
        token_ids: int64 [n].
        logits: float32 [n], finite.
    """

    token_ids: torch.Tensor
    logits: torch.Tensor


def draw_unfiltered(logits: torch.Tensor, peaks: torch.Tensor, rows: RandomRows) -> torch.Tensor:
    """Draw from every token, in vocabulary order.

    Args:
        logits: float32 [N, V]; peaks: float32 [N], their largest.

    Returns: int64 [N], token ids.
    """
    uniforms = rows.uniforms().to(logits.device)
    token_ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for chunk in row_chunks(len(logits), logits.device):
        cumulative = integer_weights(logits[chunk], peaks[chunk], rows.temperatures[chunk]).cumsum(dim=-1)
        token_ids[chunk] = draw(cumulative, cumulative[:, -1], uniforms[chunk])
    return token_ids


def draw_filtered(
    logits: torch.Tensor, peaks: torch.Tensor, rows: RandomRows
) -> tuple[torch.Tensor, dict[int, Passed]]:
    """Draw from the tokens that pass the filters, likeliest first; arguments as `draw_unfiltered`.

    All rows' likeliest tokens are looked at together. A row whose filters may keep more than those is then
    ranked by itself; which way a row goes does not change what is drawn.

    Returns: int64 [N], token ids; and what passed in rows that report processed log-probabilities.
    """
    draws = _FilteredDraws(logits, peaks, rows)
    everyone = torch.arange(len(logits), device=logits.device)
    token_ids, sure = draws.from_ranking(rank_leading(logits, _LEADING), everyone)
    for row in (~sure).nonzero():
        token_ids[row], _ = draws.from_ranking(draws.rank_candidates(int(row)), row)
    return token_ids, draws.passed


class _FilteredDraws:
    """The rows' parameters and total weights, to draw from a shorter or longer ranking of some of them."""

    def __init__(self, logits: torch.Tensor, peaks: torch.Tensor, rows: RandomRows) -> None:
        self._logits = logits
        self._peaks = peaks
        self._rows = rows
        self._uniforms = rows.uniforms().to(logits.device)
        self.passed: dict[int, Passed] = {}
        self._totals = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        unbounded = rows.filters.unbounded.nonzero()[:, 0]
        for chunk in row_chunks(len(unbounded), logits.device):
            some = unbounded[chunk]
            weights = integer_weights(logits[some], peaks[some], rows.temperatures[some])
            self._totals[some] = weights.sum(dim=-1)

    def rank_candidates(self, row: int) -> Ranking:
        """All tokens of one row that its filters might keep."""
        weights = integer_weights(
            self._logits[row : row + 1], self._peaks[row : row + 1], self._rows.temperatures[row : row + 1]
        )[0]
        floor = weight_floor(weights, self._rows.states[row].params)
        return rank_some(self._logits[row], (weights >= floor).nonzero()[:, 0])

    def from_ranking(self, ranking: Ranking, some: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids of the rows `some` [N], and whether their rankings were long enough to be sure."""
        weights = integer_weights(ranking.logits, self._peaks[some], self._rows.temperatures[some])
        cumulative = weights.cumsum(dim=-1)
        filters = self._rows.filters[some]
        kept = count_kept(ranking.logits, weights, cumulative, self._totals[some], filters)
        known = filters.unbounded | (kept.bounded < weights.shape[1])
        sure = (known & (kept.drawn_from <= ranking.certain)) | ranking.complete
        for place, row in enumerate(some.tolist()):
            params = self._rows.states[row].params
            reports = reports_processed(params)
            if not sure[place] or not (reports or params.typical_p < 1.0):
                continue
            count = int(kept.listed[place])
            passed = Passed(ranking.token_ids[place, :count], ranking.logits[place, :count])
            if params.typical_p < 1.0:  # row by row: it is rare
                remaining = weights[place, : int(kept.drawn_from[place])]
                typical = torch.from_numpy(keep_typical(remaining.cpu().numpy(), params.typical_p))
                cumulative[place, : len(typical)] = typical.cumsum(dim=-1).to(cumulative.device)
                stays = (typical > 0).to(cumulative.device)
                passed = Passed(*(values[: len(typical)][stays] for values in passed))
            if reports:
                self.passed[row] = passed
        totals = cumulative.gather(1, (kept.drawn_from - 1)[:, None])[:, 0]
        places = draw(cumulative, totals, self._uniforms[some])
        return ranking.token_ids.gather(1, places[:, None])[:, 0], sure
