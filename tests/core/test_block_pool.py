import pytest

from pageport.core.block_pool import BlockPool


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
