"""What the sampler must know of one sequence, for as long as the sequence lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pageport.core.sampling.history import TokenHistory

if TYPE_CHECKING:
    from pageport.core.sampling.grammar import GrammarMatcher
    from pageport.core.sampling_params import SamplingParams


@dataclass(slots=True, eq=False)
class SamplingState:
    """One sequence's parameters and tokens. Compared by identity, so that a batch is recognised cheaply.

    Attributes:
        seed: the resolved seed of this sequence, 0 <= seed < 2**64.
        output_token_ids: the live list; the engine appends, the sampler only reads. Its length is the
            index of the next draw.
        eos_token_ids: banned, together with `params.stop_token_ids`, until `params.min_tokens`; the first
            one is also what a row without any possible token falls back to.
        bad_words_ids: token sequences whose last token may not follow the others.
        grammar: the sequence's place in what its text must match; the engine moves it on.
        history: kept by the sampler, only for sequences with penalties.
    """

    params: SamplingParams
    seed: int
    prompt_token_ids: Sequence[int]
    output_token_ids: list[int]
    eos_token_ids: tuple[int, ...]
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    grammar: GrammarMatcher | None = None
    history: TokenHistory | None = field(default=None, init=False, repr=False)

    @property
    def fallback_token_id(self) -> int:
        """What is answered when no token is possible: the end of the sequence, or else token 0."""
        return self.eos_token_ids[0] if self.eos_token_ids else 0
