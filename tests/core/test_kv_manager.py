"""The block manager against a brute-force model: what each table's tokens are, and where each one lies."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pageport.core.block_table import BlockTable
from pageport.core.kv_manager import KVManager, KVUsage

BLOCK_SIZE = 4
NUM_BLOCKS = 12
MAX_SEQS = 5
MAX_LEN = 24


class ManagerMachine(RuleBasedStateMachine):
    """Writes a unique token into every slot that `append` hands out, as the engine would, and reads all back.

    Were a block leaked, freed twice or shared for writing, some table would read somebody else's tokens or the
    brute-force counts would differ.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVManager(NUM_BLOCKS, BLOCK_SIZE, MAX_SEQS, MAX_LEN)
        self.memory: list[list[int | None]] = [[None] * BLOCK_SIZE for _ in range(NUM_BLOCKS)]
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.next_token = 0

    @precondition(lambda self: len(self.tables) < MAX_SEQS)
    @rule()
    def create(self) -> None:
        self.tables.append((self.kv.create(), []))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(0, 9))
    def append(self, data: st.DataObject, count: int) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        count = min(count, MAX_LEN - len(tokens))
        free_before = self.kv.pool.num_free
        needed = self.kv.blocks_needed(table, count)
        assert self.kv.can_append(table, count) == (needed <= free_before)
        if not self.kv.can_append(table, count):
            return
        copy = self.kv.append(table, count)
        assert free_before - self.kv.pool.num_free == needed
        if copy is not None:
            self.memory[copy.target] = list(self.memory[copy.source])
        blocks = table.block_ids()
        for position in range(len(tokens), len(tokens) + count):
            block = blocks[position // BLOCK_SIZE]
            assert self.kv.pool.ref_count(block) == 1, "a shared block would be written"
            self.memory[block][position % BLOCK_SIZE] = self.next_token
            tokens.append(self.next_token)
            self.next_token += 1

    @precondition(lambda self: 0 < len(self.tables) < MAX_SEQS)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, tokens = data.draw(st.sampled_from(self.tables))
        self.tables.append((self.kv.fork(table), list(tokens)))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.tables) - 1))
        table, _ = self.tables.pop(index)
        self.kv.free(table)

    @invariant()
    def every_table_reads_its_own_tokens(self) -> None:
        for table, tokens in self.tables:
            blocks = table.block_ids()
            read = [self.memory[blocks[i // BLOCK_SIZE]][i % BLOCK_SIZE] for i in range(len(tokens))]
            assert read == tokens

    @invariant()
    def counts_equal_a_brute_force_count(self) -> None:
        self.kv.check_integrity()
        filled: dict[int, int] = {}
        for table, tokens in self.tables:
            for index, block in enumerate(table.block_ids()):
                here = min(BLOCK_SIZE, len(tokens) - index * BLOCK_SIZE)
                filled[block] = max(filled.get(block, 0), here)
        reserved, used = len(filled) * BLOCK_SIZE, sum(filled.values())
        assert self.kv.usage() == KVUsage(reserved, used)
        assert self.kv.usage().waste_ratio == (1 - used / reserved if reserved else 0.0)

    def teardown(self) -> None:
        for table, _ in self.tables:
            self.kv.free(table)
        assert self.kv.pool.num_used == 0
        assert self.kv.usage() == KVUsage(0, 0)
        self.kv.check_integrity()


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=2000, stateful_step_count=25, deadline=None)


def test_first_writer_after_a_fork_copies_and_the_second_does_not() -> None:
    kv = KVManager(8, 4, 4, 16)
    parent = kv.create()
    kv.append(parent, 6)
    child = kv.fork(parent)
    assert parent.block_ids() == child.block_ids()
    shared_first, shared_last = parent.block_ids()
    copy = kv.append(child, 1)
    assert copy is not None and copy.source == shared_last and copy.target == child.block_ids()[1]
    assert child.block_ids()[0] == shared_first
    assert kv.append(parent, 1) is None
    assert parent.block_ids() == [shared_first, shared_last]


def test_fork_at_a_block_border_copies_nothing() -> None:
    kv = KVManager(8, 4, 4, 16)
    parent = kv.create()
    kv.append(parent, 8)
    child = kv.fork(parent)
    assert kv.append(child, 1) is None
    assert kv.append(parent, 1) is None
    assert child.block_ids()[:2] == parent.block_ids()[:2]
    assert child.block_ids()[2] != parent.block_ids()[2]


def test_a_table_is_freed_once() -> None:
    kv = KVManager(8, 4, 4, 16)
    table = kv.create()
    kv.free(table)
    with pytest.raises(RuntimeError, match="freed before"):
        kv.free(table)


def test_waste_of_one_token_in_a_block() -> None:
    kv = KVManager(8, 16, 4, 64)
    table = kv.create()
    kv.append(table, 17)
    assert kv.usage() == KVUsage(32, 17)
    assert kv.usage().waste_ratio == pytest.approx(15 / 32)
