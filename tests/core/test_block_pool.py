"""The block pool by example, and against a brute-force model of what is free, held and still known."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pageport.core.block_pool import BlockPool

NUM_BLOCKS = 6
DIGESTS = [bytes([number]) for number in range(5)]


class PoolMachine(RuleBasedStateMachine):
    """Lists that are searched from end to end, where the pool has counts and dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.references: list[int] = []  # one entry a reference
        self.empty = list(range(NUM_BLOCKS))  # free without content, the next to go first
        self.reusable: list[int] = []  # free with content, the next to go first
        self.content: dict[int, bytes] = {}

    @rule(count=st.integers(0, NUM_BLOCKS + 1))
    def allocate(self, count: int) -> None:
        if count > len(self.empty) + len(self.reusable):
            with pytest.raises(RuntimeError, match="asked for"):
                self.pool.allocate(count)
            return
        expected = (self.empty + self.reusable)[:count]
        assert self.pool.allocate(count) == expected
        for block in expected:
            (self.empty if block in self.empty else self.reusable).remove(block)
            self.content.pop(block, None)
        self.references += expected

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.references))
        self.pool.share([block])
        self.references.append(block)

    @precondition(lambda self: self.references)
    @rule(data=st.data(), digest=st.sampled_from(DIGESTS))
    def register(self, data: st.DataObject, digest: bytes) -> None:
        block = data.draw(st.sampled_from(self.references))
        self.pool.register(block, digest)
        if digest not in self.content.values():
            self.content.setdefault(block, digest)

    @rule(digests=st.lists(st.sampled_from(DIGESTS), unique=True))
    def hold_what_is_found(self, digests: list[bytes]) -> None:
        blocks = [block for digest in digests if (block := self.pool.find(digest)) is not None]
        assert [self.content[block] for block in blocks] == [d for d in digests if d in self.content.values()]
        revived = [block for block in blocks if block not in self.references]
        assert self.pool.hold(blocks) == revived
        for block in revived:
            self.reusable.remove(block)
        self.references += blocks

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = st.sampled_from(sorted(set(self.references)))
        blocks = data.draw(st.lists(held, unique=True, min_size=1))
        for block in blocks:
            self.references.remove(block)
        freed = [block for block in reversed(blocks) if block not in self.references]
        assert self.pool.release(blocks) == freed
        for block in freed:
            if block in self.content:
                self.reusable.append(block)
            else:
                self.empty.insert(0, block)

    @invariant()
    def the_pool_agrees(self) -> None:
        self.pool.check_integrity(self.references)
        assert self.pool.num_free == len(self.empty) + len(self.reusable)
        assert self.pool.num_used == len(set(self.references))
        found = {digest: block for digest in DIGESTS if (block := self.pool.find(digest)) is not None}
        assert found == {digest: block for block, digest in self.content.items()}


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)


def test_allocates_each_block_once_and_takes_it_back() -> None:
    pool = BlockPool(4)
    taken = pool.allocate(3)
    assert len(set(taken)) == 3 and pool.num_free == 1 and pool.num_used == 3
    pool.check_integrity(taken)
    assert sorted(pool.release(taken)) == sorted(taken)
    assert pool.num_free == 4
    pool.check_integrity([])


def test_shared_block_is_freed_by_its_last_holder() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.share([block])
    assert pool.ref_count(block) == 2
    assert pool.release([block]) == []
    assert pool.num_used == 1
    assert pool.release([block]) == [block]
    assert pool.num_used == 0


def test_untouched_blocks_stay_untouched_while_others_are_free() -> None:
    pool = BlockPool(100)
    for _ in range(10):
        blocks = pool.allocate(3)
        assert max(blocks) < 3
        pool.release(blocks)


def test_refuses_to_hand_out_more_than_there_is() -> None:
    pool = BlockPool(2)
    with pytest.raises(RuntimeError, match="3 blocks asked for, 2 free"):
        pool.allocate(3)
    assert pool.num_free == 2


def test_refuses_double_free_and_sharing_of_free_blocks() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(RuntimeError, match="already free"):
        pool.release(blocks)
    with pytest.raises(RuntimeError, match="is free and cannot be shared"):
        pool.share(blocks)


def test_check_integrity_sees_a_leak() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check_integrity([])


def test_only_held_blocks_have_content_to_register() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.release([block])
    with pytest.raises(RuntimeError, match="is free and has no content"):
        pool.register(block, b"digest")


def test_check_integrity_sees_content_that_nobody_can_find() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.register(block, b"digest")
    pool.check_integrity([block])
    pool._by_digest.clear()
    with pytest.raises(AssertionError, match="digests and blocks disagree"):
        pool.check_integrity([block])
