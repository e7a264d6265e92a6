"""A sequence in flight. Its whole schedule is the gap between its tokens and the computed ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from pageport.core.block_table import BlockTable
from pageport.core.request import EngineRequest

_arrival_numbers = itertools.count()


@dataclass(slots=True, eq=False)
class Sequence:
    """One of the `n` continuations of a request; the scheduler's unit.

    Attributes:
        request: what the client asked.
        index: which of the request's sequences.
        token_ids: prompt, then output.
        num_computed: tokens whose keys and values are in the cache.
        table: its blocks; None while it waits.
        unforked: sequences that are still to be forked from this one when its prompt is computed.
        arrival: orders sequences by age; a fork is as old as its parent.
        preemptions: how often it lost its blocks.
        digests: of the full blocks of its prompt, once somebody has asked for them.
        num_registered: blocks from the first on that others can find.
    """

    request: EngineRequest
    index: int = 0
    token_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    table: BlockTable | None = None
    unforked: int = 0
    arrival: int = field(default_factory=lambda: next(_arrival_numbers))
    preemptions: int = 0
    digests: list[bytes] | None = None
    num_registered: int = 0

    @classmethod
    def first_of(cls, request: EngineRequest) -> Sequence:
        """The sequence that computes a new request's prompt."""
        return cls(request, token_ids=list(request.prompt_token_ids), unforked=request.sampling.n - 1)

    @property
    def num_pending(self) -> int:
        """Tokens still to be computed before the next one can be sampled."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def seats(self) -> int:
        """Running sequences this one stands for, forks to come included."""
        return 1 + self.unforked
