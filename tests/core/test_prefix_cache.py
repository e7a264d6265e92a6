"""The prefix cache against a brute-force model: what lies in each slot is the prompt that led to it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from engine_runs import BLOCK_BYTES, make_engine, run
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pageport.core import EngineRequest, SamplingParams
from pageport.core.block_pool import BlockPool
from pageport.core.block_table import BlockTable
from pageport.core.kv_manager import KVManager
from pageport.core.prefix import block_digests

BLOCK_SIZE, NUM_BLOCKS, MAX_SEQS = 4, 10, 4
PROMPTS = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=20).map(tuple)


def test_equal_beginnings_have_equal_digests_and_nothing_else_has() -> None:
    first = block_digests([1, 2, 3, 4, 5, 6, 7, 8, 9], 4)
    assert len(first) == 2
    assert block_digests([1, 2, 3, 4, 5, 6, 7, 0], 4)[0] == first[0]
    assert block_digests([1, 2, 3, 4, 5, 6, 7, 0], 4)[1] != first[1]
    assert block_digests([0, 2, 3, 4, 5, 6, 7, 8], 4)[1] != first[1], "the same tokens behind other ones"


def test_blocks_without_content_go_first_then_the_one_that_was_free_for_longest() -> None:
    pool = BlockPool(4)
    a, b, c, d = pool.allocate(4)
    for block in (a, b, c):
        pool.register(block, bytes([block]))
    for block in (b, d, a, c):
        pool.release([block])
    assert pool.num_free == 4
    assert pool.hold([b]) == [b]  # used again: no longer the oldest
    pool.release([b])
    assert pool.allocate(2) == [d, a]
    assert [pool.find(bytes([block])) for block in (a, b, c)] == [None, b, c]


@dataclass
class Live:
    """A table, its tokens, how many of them are the prompt, and how many are computed."""

    table: BlockTable
    tokens: tuple[int, ...]
    prompt: int
    computed: int


class PrefixMachine(RuleBasedStateMachine):
    """Every slot remembers the tokens up to and including its own; whoever finds a block must find just these."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVManager(NUM_BLOCKS, BLOCK_SIZE, MAX_SEQS, 40)
        self.slots: dict[tuple[int, int], tuple[int, ...]] = {}
        self.live: list[Live] = []
        self.known: dict[bytes, tuple[int, ...]] = {}  # what each digest stands for

    @precondition(lambda self: len(self.live) < MAX_SEQS)
    @rule(prompt=PROMPTS)
    def begin(self, prompt: tuple[int, ...]) -> None:
        digests = block_digests(prompt, BLOCK_SIZE)
        self.known |= {digest: prompt[: (i + 1) * BLOCK_SIZE] for i, digest in enumerate(digests)}
        found = self.kv.find_prefix(digests)[: (len(prompt) - 1) // BLOCK_SIZE]
        free = self.kv.pool.num_free
        needed = self.kv.blocks_needed_anew(found, len(prompt))
        if needed > free:
            return
        table = self.kv.create(found)
        assert self.kv.append(table, len(prompt) - len(found) * BLOCK_SIZE) is None
        assert self.kv.pool.num_free == free - needed
        self.live.append(Live(table, prompt, len(prompt), len(found) * BLOCK_SIZE))

    @precondition(lambda self: any(live.computed < live.prompt for live in self.live))
    @rule(data=st.data(), count=st.integers(1, 9))
    def compute(self, data: st.DataObject, count: int) -> None:
        """Write some of a prompt's tokens, and let others find the blocks that are full now."""
        live = data.draw(st.sampled_from([live for live in self.live if live.computed < live.prompt]))
        before = live.computed
        self._write(live, min(before + count, live.prompt))
        digests = block_digests(live.tokens, BLOCK_SIZE)
        for full in range(before // BLOCK_SIZE, live.computed // BLOCK_SIZE):
            self.kv.register(live.table, full, digests[full])

    @precondition(lambda self: any(live.computed >= live.prompt for live in self.live))
    @rule(data=st.data(), token=st.sampled_from([1, 2]))
    def decode(self, data: st.DataObject, token: int) -> None:
        live = data.draw(st.sampled_from([live for live in self.live if live.computed >= live.prompt]))
        if len(live.tokens) == 40 or not self.kv.can_append(live.table, 1):
            return
        copy = self.kv.append(live.table, 1)
        if copy is not None:
            for offset in range(BLOCK_SIZE):
                self.slots[copy.target, offset] = self.slots.get((copy.source, offset), ())
        live.tokens = (*live.tokens, token)
        self._write(live, len(live.tokens))

    @precondition(lambda self: 0 < len(self.live) < MAX_SEQS)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        if live.computed >= live.prompt:
            self.live.append(replace(live, table=self.kv.fork(live.table)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.kv.free(self.live.pop(data.draw(st.integers(0, len(self.live) - 1))).table)

    @invariant()
    def every_table_reads_its_own_tokens(self) -> None:
        for live in self.live:
            for position in range(live.computed):
                block = int(live.table.ids[position // BLOCK_SIZE])
                assert self.slots[block, position % BLOCK_SIZE] == live.tokens[: position + 1]

    @invariant()
    def whoever_finds_a_block_finds_what_was_asked_for(self) -> None:
        self.kv.check_integrity()
        for digest, tokens in self.known.items():
            for block in self.kv.find_prefix([digest]):
                assert self.slots[block, BLOCK_SIZE - 1] == tokens

    def teardown(self) -> None:
        for live in self.live:
            self.kv.free(live.table)
        assert self.kv.pool.num_free == NUM_BLOCKS
        self.kv.check_integrity()

    def _write(self, live: Live, until: int) -> None:
        for position in range(live.computed, until):
            block = int(live.table.ids[position // BLOCK_SIZE])
            assert self.kv.pool.ref_count(block) == 1, "a shared block would be written"
            self.slots[block, position % BLOCK_SIZE] = live.tokens[: position + 1]
        live.computed = until


TestPrefix = PrefixMachine.TestCase
TestPrefix.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_answers_are_the_same_with_and_without(tiny_model: Path, kernels: str) -> None:
    rng = random.Random(3)
    shared = tuple(rng.choices(range(256), k=40))
    prompts = [
        shared[: rng.randint(0, 40)] + tuple(rng.choices(range(256), k=rng.randint(1, 30))) for _ in range(12)
    ]
    params = [SamplingParams(temperature=float(i % 2), seed=i, max_tokens=8) for i in range(len(prompts))]
    asked = list(zip(prompts, params, strict=True))
    answers = []
    for caching in (False, True):
        engine = make_engine(tiny_model, kernel_backend=kernels, enable_prefix_caching=caching)
        for _ in range(2):
            answers.append([output.token_ids for (output,) in run(engine, *asked)])
        hits = engine.stats().prefix_cache_hits
        assert (hits > 0) == (caching and kernels == "reference"), (
            "the CPU's pieces are longer than these prompts"
        )
    assert answers[0] == answers[1] == answers[2] == answers[3]


def test_a_prompt_that_was_not_computed_to_its_end_is_found_as_far_as_it_was(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, kernel_backend="reference", max_num_batched_tokens=12, max_num_seqs=4)
    prompt = tuple(range(40))
    engine.add_request(EngineRequest("a", prompt, SamplingParams(max_tokens=2), time.monotonic()))
    engine.step()  # 12 of 40 tokens: three blocks
    engine.abort("a")
    engine.check_integrity()
    run(engine, (prompt, SamplingParams(max_tokens=2, temperature=0.0)))
    stats = engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (80, 12)


def test_who_wants_the_prompts_logprobs_computes_all_of_it(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, kernel_backend="reference")
    prompt = tuple(range(40))
    plain = SamplingParams(max_tokens=2, temperature=0.0)
    run(engine, (prompt, plain))
    ((output,),) = run(engine, (prompt, SamplingParams(max_tokens=2, temperature=0.0, prompt_logprobs=0)))
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == 40
    assert engine.stats().prefix_cache_hits == 0


def test_full_memory_forgets_the_oldest_prompt_first(tiny_model: Path) -> None:
    engine = make_engine(tiny_model, kernel_backend="reference", kv_cache_memory_bytes=24 * BLOCK_BYTES)
    plain = SamplingParams(max_tokens=1, temperature=0.0)
    prompts = [tuple(range(start, start + 33)) for start in (0, 100, 200)]
    for prompt in prompts:
        run(engine, (prompt, plain))  # eight full blocks and one more each
    before = engine.stats().prefix_cache_hits
    run(engine, (prompts[2], plain))
    assert engine.stats().prefix_cache_hits - before == 32
    run(engine, (prompts[0], plain))
    assert engine.stats().prefix_cache_hits - before < 64
