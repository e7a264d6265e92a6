"""The scheduler with a pretended model: a step computes what was planned and samples where a sequence is complete."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import NamedTuple

from pageport.core.kv_manager import KVManager
from pageport.core.prefix import block_digests
from pageport.core.request import EngineRequest
from pageport.core.sampling_params import SamplingParams
from pageport.core.scheduler import Scheduler, StepPlan
from pageport.core.sequence import Sequence

MAX_LEN = 32


class Slot(NamedTuple):
    """What a token's keys and values depend on: the tokens up to it, and the piece that it was computed in.

    The piece is a range of positions, as the kernels cut a chunk, or None: computed as a single token.
    """

    tokens: tuple[int, ...]
    piece: tuple[int, int] | None


class PretendEngine:
    """Runs plans against a `Scheduler` the way `Engine` does, and remembers what lies in each slot."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        budget: int,
        alignment: int = 1,
        prefix_caching: bool = False,
        exact_recompute: bool = False,
    ) -> None:
        self.kv = KVManager(num_blocks, block_size, max_num_seqs, MAX_LEN)
        self.scheduler = Scheduler(
            self.kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            chunk_alignment=alignment,
            prefix_caching=prefix_caching,
            exact_recompute=exact_recompute,
        )
        self.budget, self.max_num_seqs, self.alignment = budget, max_num_seqs, alignment
        self.finished: list[Sequence] = []
        self.live: list[Sequence] = []
        self.memory: dict[tuple[int, int], Slot] = {}
        self._prompts: dict[bytes, tuple[int, ...]] = {}  # what each digest stands for
        # Cuts show in no result where pieces have a length and are never too long for a step.
        self._exact = exact_recompute and 1 < alignment < budget - max_num_seqs

    def add(
        self, prompt: int | Many[int], output: int, n: int = 1, *, prompt_logprobs: int | None = None
    ) -> Sequence:
        """Queue a request with these prompt tokens, or so many equal ones."""
        tokens = (7,) * prompt if isinstance(prompt, int) else tuple(prompt)
        params = SamplingParams(max_tokens=output, n=n, prompt_logprobs=prompt_logprobs)
        sequence = Sequence.first_of(EngineRequest(f"r{len(self.live)}", tokens, params, 0.0))
        block_size = self.kv.block_size
        for index, digest in enumerate(block_digests(tokens, block_size)):
            self._prompts[digest] = tokens[: (index + 1) * block_size]
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.live.remove(sequence)

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        assert sum(num_tokens for _, num_tokens in plan.scheduled) <= self.budget
        assert len(self.scheduler.running) <= self.max_num_seqs
        assert len({id(item.sequence) for item in plan.scheduled}) == len(plan.scheduled)
        self.kv.check_integrity()
        running, waiting = self.scheduler.running, self.scheduler.waiting
        if running and waiting:
            assert running[-1].arrival <= waiting[0].arrival, "a newer sequence runs while an older one waits"
        complete = [item.sequence for item in plan.scheduled if item.samples]
        self._compute(plan)
        self.scheduler.complete(plan)
        self._check_memory(plan)
        for sequence in complete:
            for index in range(1, 1 + sequence.unforked):
                child = Sequence(
                    sequence.request, index, list(sequence.token_ids), sequence.num_computed,
                    arrival=sequence.arrival, digests=sequence.digests, num_registered=sequence.num_registered,
                )  # fmt: skip
                self.scheduler.add_fork(sequence, child)
                self.live.append(child)
                self._sample(child)
            self._sample(sequence)
        return plan

    def shares(self) -> list[int]:
        """Tokens of each sequence in the next step."""
        return [num_tokens for _, num_tokens in self.step().scheduled]

    def run(self) -> None:
        while self.scheduler.has_work:
            assert self.step().scheduled

    def _compute(self, plan: StepPlan) -> None:
        block_size = self.kv.block_size
        for source, target in plan.copies:
            for offset in range(block_size):
                if (source, offset) in self.memory:
                    self.memory[target, offset] = self.memory[source, offset]
        for sequence, count in plan.scheduled:
            assert 1 <= count <= sequence.num_pending
            assert sequence.table is not None
            start = sequence.num_computed
            assert sequence.table.num_tokens == start + count
            for position in range(start, start + count):
                block = int(sequence.table.ids[position // block_size])
                assert self.kv.pool.ref_count(block) == 1, "a shared block would be written"
                begin = position - (position - start) % self.alignment
                piece = None if count == 1 else (begin, min(begin + self.alignment, start + count))
                slot = Slot(tuple(sequence.token_ids[: position + 1]), piece)
                self.memory[block, position % block_size] = slot

    def _check_memory(self, plan: StepPlan) -> None:
        """Each sequence reads its own tokens, computed as they would have been alone; so does whoever finds a block."""
        block_size = self.kv.block_size
        for sequence, _ in plan.scheduled:
            assert sequence.table is not None
            blocks = sequence.table.block_ids()
            for position in range(sequence.num_computed):
                slot = self.memory[blocks[position // block_size], position % block_size]
                assert slot.tokens == tuple(sequence.token_ids[: position + 1])
                if self._exact:
                    assert slot.piece == self._undisturbed(position, sequence.num_prompt_tokens)
        for digest, tokens in self._prompts.items():
            block = self.kv.pool.find(digest)
            if block is not None:
                assert self.memory[block, block_size - 1].tokens == tokens

    def _undisturbed(self, position: int, prompt: int) -> tuple[int, int] | None:
        if position >= prompt or prompt == 1:
            return None
        begin = position // self.alignment * self.alignment
        return (begin, min(begin + self.alignment, prompt))

    def _sample(self, sequence: Sequence) -> None:
        # Some token that depends on all before, so that continuations are seldom equal by chance.
        sequence.token_ids.append(hash((sequence.index, *sequence.token_ids)) % 1000)
        if sequence.num_output_tokens == sequence.request.sampling.max_tokens:
            self.abort(sequence)
            self.finished.append(sequence)
