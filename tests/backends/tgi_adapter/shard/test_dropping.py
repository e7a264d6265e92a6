"""FilterBatch, ClearCache and broken connections: what is dropped ends in the engine, and nothing fails."""

from __future__ import annotations

import pytest
from manual_engine import until
from shard_client import Shard, request, texts

from pageport.backends.tgi_adapter.pb import generate_v3_pb2 as v3


async def test_filter_ends_those_that_nobody_waits_for(shard: Shard) -> None:
    batch = await shard.started(0, request(0), request(1), request(2))
    gone, kept, also_gone = shard.engine.submissions
    answer = await shard.filter(0, 1)
    assert answer.batch == v3.CachedBatch(id=0, request_ids=[1], size=1, max_tokens=105, current_tokens=1)
    await until(lambda: gone.aborted and also_gone.aborted)
    assert not kept.aborted
    kept.emit("b")
    assert texts(await shard.decode(batch)) == {1: ["b"]}


async def test_filter_twice_is_the_same_as_once(shard: Shard) -> None:
    await shard.started(0, request(0), request(1))
    assert await shard.filter(0, 1) == await shard.filter(0, 1, 999)


@pytest.mark.parametrize("batch_id", [0, 77])
async def test_filter_says_when_nothing_is_left(shard: Shard, batch_id: int) -> None:
    """The router then tells the clients that their answers end here; a batch that is not here must not fail."""
    await shard.started(0, request(0))
    answer = await shard.filter(batch_id, 5)
    assert not answer.HasField("batch")
    assert shard.held_requests == ([] if batch_id == 0 else [0])


async def test_clear_drops_one_batch(plain_shard: Shard) -> None:
    await plain_shard.started(0, request(0))
    await plain_shard.started(1, request(1))
    await plain_shard.clear(0)
    await plain_shard.clear(0)
    gone, kept = plain_shard.engine.submissions
    await until(lambda: gone.aborted)
    assert not kept.aborted
    assert plain_shard.held_requests == [1]


async def test_clear_without_an_id_drops_everything(plain_shard: Shard) -> None:
    await plain_shard.started(0, request(0))
    await plain_shard.started(1, request(1), request(2))
    await plain_shard.clear()
    await until(lambda: all(submission.aborted for submission in plain_shard.engine.submissions))
    assert plain_shard.held_requests == []


async def test_a_step_whose_batch_is_cleared_ends(shard: Shard) -> None:
    call = shard.prefill(0, [request(0)])
    await shard.engine.submitted(1)
    await shard.clear()
    answer = await call
    assert list(answer.generations) == []
    assert not answer.HasField("batch")


async def test_a_router_that_goes_away_takes_its_requests_along(shard: Shard) -> None:
    call = shard.prefill(0, [request(0)])
    (submission,) = await shard.engine.submitted(1)
    call.cancel()
    await until(lambda: submission.aborted)
    assert shard.held_requests == []


async def test_a_new_batch_of_the_same_id_replaces_the_old_one(plain_shard: Shard) -> None:
    """A router that was started again counts from 0 again."""
    await plain_shard.started(0, request(0))
    await plain_shard.started(0, request(0, "again"))
    old, new = plain_shard.engine.submissions
    await until(lambda: old.aborted)
    assert not new.aborted
    assert new.prompt == "again"


async def test_stopping_ends_everything_and_removes_the_socket(shard: Shard) -> None:
    await shard.started(0, request(0))
    assert shard.path.is_socket()
    assert [path.name for path in shard.path.parent.iterdir()] == ["shard-0"]
    await shard.server.stop()
    assert not shard.path.exists()
    assert shard.engine.submissions[0].aborted
