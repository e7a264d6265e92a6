"""One step's plan: which sequences get how many tokens, and who has to give up its blocks.

There is no prefill phase and no decode phase. Each sequence has tokens and computed tokens; a step closes some of
the gap under one token budget. Continuous batching: Orca (Yu et al., OSDI 2022); chunked prefill beside decodes:
Sarathi-Serve (Agrawal et al., OSDI 2024); the counters are vLLM V1's way of putting both.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pageport.core.kv_manager import BlockCopy, KVManager
from pageport.core.prefix import block_digests
from pageport.core.sequence import Sequence


class ScheduledSequence(NamedTuple):
    """`num_tokens` of a sequence's pending tokens, to be computed in this step."""

    sequence: Sequence
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step reaches the sequence's last token, so that a new one can be drawn."""
        return self.num_tokens == self.sequence.num_pending


class StepPlan(NamedTuple):
    """What one step computes; block tables are already extended for it."""

    scheduled: list[ScheduledSequence]
    copies: list[BlockCopy]


Preemptor = Callable[[KVManager, Sequence], None]


def preempt_by_recompute(kv: KVManager, victim: Sequence) -> None:
    """Drop the victim's blocks; its tokens are computed again when it comes back.

    The seam for swapping: a preemptor that moves the blocks elsewhere leaves `num_computed` as it is.
    """
    assert victim.table is not None
    kv.free(victim.table)
    victim.table = None
    victim.num_computed = 0


class Scheduler:
    """First come, first served, with the oldest sequence always making progress.

    A sequence may only take blocks from a newer one, and any single sequence fits into the pool, so the oldest
    is never stopped and every request ends: no livelock under any load.

    Prefix cache: a new sequence starts behind the beginning of its prompt that somebody has computed before, as far
    as that does not show in its answer. Kernels compute prompts in pieces of `chunk_alignment` tokens, of which a
    prompt's last may be shorter, and single tokens on a path of their own; the same tokens computed in pieces of
    another length differ in their last bits. So only whole pieces of prompts are stored and reused, which leaves out
    generated tokens, and a hit never leaves a single token that would otherwise have been part of a piece.
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        watermark: float = 0.0,
        chunk_alignment: int = 1,
        prefix_caching: bool = False,
        exact_recompute: bool = False,
        preempt: Preemptor = preempt_by_recompute,
    ) -> None:
        self.kv = kv
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # ordered by arrival
        self.num_preemptions = 0
        self.prefix_queries = 0  # prompt tokens looked up, and found
        self.prefix_hits = 0
        self._prefix_caching = prefix_caching
        self._exact_recompute = exact_recompute
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        # Where the budget is too small to always leave room for a whole piece, prompts are cut anywhere.
        roomy = max_num_batched_tokens - max_num_seqs > chunk_alignment
        self._chunk_alignment = chunk_alignment if roomy else 1
        self._prefix_step = math.lcm(kv.block_size, self._chunk_alignment)
        self._watermark_blocks = int(watermark * kv.pool.num_blocks)
        self._preempt_blocks = preempt

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def add_fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` run on with the parent's blocks; it takes one of the parent's reserved seats."""
        assert parent.table is not None and parent.unforked > 0
        parent.unforked -= 1
        child.table = self.kv.fork(parent.table)
        self._insert_running(child)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and free its blocks at once."""
        if sequence.table is not None:
            self.running.remove(sequence)
            self.kv.free(sequence.table)
            sequence.table = None
        else:
            self.waiting.remove(sequence)

    def plan(self) -> StepPlan:
        """Decide the next step and take the blocks it needs.

        Blocks go out by age, so a victim is always the newest and no sequence loses blocks to a newer one. Budget does
        not: a prompt leaves every decode its token, so that it never delays tokens that are being streamed.
        """
        plan = StepPlan([], [])
        budget = self._max_num_batched_tokens
        decodes_to_come = sum(self._wanted(sequence) == 1 for sequence in self.running)
        preempted = False
        for sequence in list(self.running):
            if sequence.table is None:  # preempted a moment ago by an older one
                continue
            wanted = self._wanted(sequence)
            decodes_to_come -= wanted == 1
            num_tokens = self._share(sequence, budget - (decodes_to_come if wanted > 1 else 0))
            if num_tokens == 0:
                continue
            while not self.kv.can_append(sequence.table, num_tokens):
                victim = self.running[-1]
                preempted = True
                decodes_to_come -= victim is not sequence and self._wanted(victim) == 1
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                self._take(plan, sequence, num_tokens)
                budget -= num_tokens
        if not preempted:
            self._admit(plan, budget)
        return plan

    def complete(self, plan: StepPlan) -> None:
        """Note that a plan's tokens were computed; only now may others find the prompts' full blocks."""
        for sequence, num_tokens in plan.scheduled:
            sequence.num_computed += num_tokens
            if self._prefix_caching:
                self._register(sequence)

    # -- private -----------------------------------------------------------------------------------------

    def _wanted(self, sequence: Sequence) -> int:
        """Tokens that a step without a budget would compute of a sequence.

        With `exact_recompute` the tokens behind the prompt come one a step also where several are known, after a
        preemption or the death of an engine: each is computed by the kernels that computed it first.
        """
        if not self._exact_recompute:
            return sequence.num_pending
        prompt_left = sequence.num_prompt_tokens - sequence.num_computed
        return min(sequence.num_pending, max(prompt_left, 1))

    def _share(self, sequence: Sequence, budget: int) -> int:
        """Tokens of a sequence that a step with this budget left computes.

        A prompt that does not fit is cut at multiples of the kernels' alignment, and never so that one token is
        left (single tokens are computed on a path of their own): then the cuts, which depend on who else is in
        the step, do not show in the results.
        """
        pending = self._wanted(sequence)
        if pending <= budget:
            return pending
        align = self._chunk_alignment
        num_tokens = (sequence.num_computed + budget) // align * align - sequence.num_computed
        if align > 1 and pending - num_tokens == 1:
            num_tokens -= align
        return max(num_tokens, 0)

    def _take(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> None:
        assert sequence.table is not None
        copy = self.kv.append(sequence.table, num_tokens)
        if copy is not None:
            plan.copies.append(copy)
        plan.scheduled.append(ScheduledSequence(sequence, num_tokens))

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self._preempt_blocks(self.kv, victim)
        victim.preemptions += 1
        self.num_preemptions += 1
        # Back among the waiting by age: those that were preempted are older than those that never ran.
        position = bisect.bisect_left(self.waiting, victim.arrival, key=lambda s: s.arrival)
        self.waiting.insert(position, victim)

    def _admit(self, plan: StepPlan, budget: int) -> None:
        """Start waiting sequences for which there is budget, a seat, and room for all their tokens.

        The room is beside what running prompts still need and a small reserve: a prompt that started without it
        would run out of blocks halfway and be thrown out again.
        """
        seats = self._max_num_seqs - sum(sequence.seats for sequence in self.running)
        promised = sum(self._blocks_to_come(sequence) for sequence in self.running)
        while self.waiting and self.waiting[0].seats <= seats:
            sequence = self.waiting[0]
            prefix = self._find_prefix(sequence)
            sequence.num_computed = len(prefix) * self.kv.block_size
            num_tokens = self._share(sequence, budget)
            reserve = promised + self._watermark_blocks if self.running else 0
            needed = self.kv.blocks_needed_anew(prefix, len(sequence.token_ids))
            if num_tokens == 0 or needed + reserve > self.kv.pool.num_free:
                sequence.num_computed = 0
                break
            self.waiting.popleft()
            seats -= sequence.seats
            sequence.table = self.kv.create(prefix)
            sequence.num_registered = len(prefix)
            self._count_lookup(sequence)
            self._insert_running(sequence)
            self._take(plan, sequence, num_tokens)
            budget -= num_tokens
            promised += self._blocks_to_come(sequence)

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """Blocks of a waiting sequence's prompt that need not be computed again."""
        if not self._looks_up(sequence):
            return []
        found = self.kv.find_prefix(self._digests_of(sequence))
        step, prompt = self._prefix_step, sequence.num_prompt_tokens
        reusable = min(len(found) * self.kv.block_size, prompt - 1) // step * step
        if reusable and prompt - reusable == 1 and self._chunk_alignment > 1:
            reusable -= step
        return found[: reusable // self.kv.block_size]

    def _looks_up(self, sequence: Sequence) -> bool:
        """Log-probabilities of the prompt need all of it computed."""
        return self._prefix_caching and sequence.request.sampling.prompt_logprobs is None

    def _digests_of(self, sequence: Sequence) -> list[bytes]:
        if sequence.digests is None:
            sequence.digests = block_digests(sequence.request.prompt_token_ids, self.kv.block_size)
        return sequence.digests

    def _register(self, sequence: Sequence) -> None:
        step = self._prefix_step
        full = min(sequence.num_computed, sequence.num_prompt_tokens) // step * step // self.kv.block_size
        if full > sequence.num_registered and sequence.table is not None:
            digests = self._digests_of(sequence)
            for index in range(sequence.num_registered, full):
                self.kv.register(sequence.table, index, digests[index])
            sequence.num_registered = full

    def _count_lookup(self, sequence: Sequence) -> None:
        if self._looks_up(sequence) and sequence.preemptions == 0:
            self.prefix_queries += sequence.num_prompt_tokens
            self.prefix_hits += sequence.num_computed

    def _blocks_to_come(self, sequence: Sequence) -> int:
        """Blocks that a running sequence's known tokens still need."""
        assert sequence.table is not None
        return self.kv.blocks_needed(sequence.table, len(sequence.token_ids) - sequence.table.num_tokens)

    def _insert_running(self, sequence: Sequence) -> None:
        bisect.insort(self.running, sequence, key=lambda s: s.arrival)
