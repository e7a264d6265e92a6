"""The rows of one batch sorted by what they ask for; built once for as long as the batch stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pageport.core.sampling.bans import has_bans
from pageport.core.sampling.filters import FilterParams, has_filters
from pageport.core.sampling.logprobs import reports_processed, reports_raw
from pageport.core.sampling.penalties import has_penalties
from pageport.core.sampling.random import uniforms
from pageport.core.sampling.state import SamplingState


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of the batch and their states."""

    indices: list[int]
    states: list[SamplingState]

    @classmethod
    def where(cls, states: Sequence[SamplingState], chosen: Callable[[SamplingState], bool]) -> Rows:
        indices = [row for row, state in enumerate(states) if chosen(state)]
        return cls(indices, [states[row] for row in indices])

    def __bool__(self) -> bool:
        return bool(self.indices)


@dataclass(frozen=True, slots=True)
class RandomRows:
    """Rows that are drawn at random, with their parameters gathered."""

    indices: list[int]
    states: list[SamplingState]
    seeds: npt.NDArray[np.uint64]
    temperatures: torch.Tensor  # float32 [N]
    filters: FilterParams

    @classmethod
    def gather(cls, rows: Rows, device: torch.device) -> RandomRows:
        params = [state.params for state in rows.states]
        return cls(
            rows.indices,
            rows.states,
            np.array([state.seed for state in rows.states], dtype=np.uint64),
            torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
            FilterParams.gather(params, device),
        )

    def uniforms(self) -> torch.Tensor:
        """float64 [N], on the CPU: each row's number for its next token."""
        indices = np.array([len(state.output_token_ids) for state in self.states], dtype=np.uint64)
        return torch.from_numpy(uniforms(self.seeds, indices))


class Batch:
    """Which rows of a batch need which work."""

    def __init__(self, states: Sequence[SamplingState], device: torch.device) -> None:
        self.states = list(states)
        self.banned = Rows.where(states, has_bans)
        self.biased = Rows.where(states, lambda state: bool(state.params.logit_bias))
        self.penalised = Rows.where(states, has_penalties)
        self.watermarked = Rows.where(states, lambda state: state.params.watermark is not None)
        self.guided = Rows.where(states, lambda state: state.grammar is not None)
        self.with_logprobs = Rows.where(states, lambda state: reports_raw(state.params))
        self.with_processed = Rows.where(states, lambda state: reports_processed(state.params))
        self.greedy = Rows.where(states, lambda state: state.params.is_greedy)
        self.unfiltered = RandomRows.gather(
            Rows.where(states, lambda s: not s.params.is_greedy and not has_filters(s.params)), device
        )
        self.filtered = RandomRows.gather(
            Rows.where(states, lambda s: not s.params.is_greedy and has_filters(s.params)), device
        )
