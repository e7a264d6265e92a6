"""Several ranks: each request is answered by one of them, and all agree on who is held until the router says."""

from __future__ import annotations

from pathlib import Path

import pytest
from shard_client import request, running_shard, texts

from pageport.backends.tgi_adapter.pb import generate_v3_pb2 as v3
from pageport.core import FinishReason


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_rank_serves_its_share_and_holds_all(tmp_path: Path, rank: int) -> None:
    async with running_shard(tmp_path, rank=rank, world_size=2) as shard:
        call = shard.prefill(0, [request(number, str(number), max_new_tokens=9) for number in range(4)])
        served = await shard.engine.submitted(2)
        assert [submission.prompt for submission in served] == [str(rank), str(rank + 2)]
        served[0].emit("a", end=FinishReason.LENGTH)
        answer = await call
        assert texts(answer) == {rank: ["a"]}
        # The finished one counts no tokens any more, but the other rank holds it still.
        assert list(answer.batch.request_ids) == [0, 1, 2, 3]
        assert (answer.batch.size, answer.batch.max_tokens) == (4, 30)
        filtered = await shard.filter(0, 3)
        assert list(filtered.batch.request_ids) == [3]
        await shard.clear(0)
        assert shard.held_requests == []


async def test_a_rank_without_requests_in_a_batch_answers_at_once(tmp_path: Path) -> None:
    async with running_shard(tmp_path, rank=1, world_size=2) as shard:
        answer = await shard.prefill(0, [request(0)])
        assert list(answer.generations) == []
        assert answer.batch == v3.CachedBatch(id=0, request_ids=[0], size=1, max_tokens=105, current_tokens=1)
        assert await shard.decode(answer.batch) is not None
        assert shard.engine.submissions == []


async def test_a_batch_whose_requests_are_all_finished_waits_for_the_router(tmp_path: Path) -> None:
    async with running_shard(tmp_path, rank=0, world_size=2) as shard:
        call = shard.prefill(0, [request(0)])
        (await shard.engine.submitted(1))[0].emit("a", end=FinishReason.LENGTH)
        answer = await call
        assert list(answer.batch.request_ids) == [0]
        await shard.clear(0)
        assert shard.held_requests == []
