"""The double starts, or refuses to, as TGI's routers were recorded to with the same flags and shards."""

from __future__ import annotations

from typing import Any

import pytest
from recording import START_UPS, read_lines
from stand_in import Behaviour, StandIn
from start_up import Flags, Limits, StartRefusedError, start
from tokenizers import Tokenizer
from virtual_time import run_virtually

from pageport.backends.tgi_adapter.pb import generate_v2_pb2, generate_v3_pb2


class Warmed(StandIn):
    """Keeps the warm-up request."""

    warmup: Any = None

    async def Warmup(self, request: Any) -> Any:
        self.warmup = request
        return await super().Warmup(request)


def summary(request: Any) -> dict[str, Any]:
    """A warm-up request as the recordings keep it."""
    about = {field.name: value for field, value in request.ListFields() if field.name != "batch"}
    batch = {field.name: value for field, value in request.batch.ListFields() if field.name != "requests"}
    requests = [[item.truncate, item.stopping_parameters.max_new_tokens] for item in request.batch.requests]
    return {**about, **batch, "requests": requests}


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in read_lines(START_UPS)])
def test_it_starts_as_the_router_did(case: dict[str, Any], tokenizer: Tokenizer) -> None:
    pb: Any = generate_v2_pb2 if case["v2"] else generate_v3_pb2
    shard = Warmed(pb, tokenizer, Behaviour(case["info"], case["answer"]))

    async def begin() -> Limits:
        return await start(pb, shard, Flags.parse(case["flags"], case.get("environment", {})))

    if case["exit"] is None:
        limits = run_virtually(begin())
        assert [limits.max_input, limits.max_total] == case["limits"]
    else:
        with pytest.raises(StartRefusedError) as refused:
            run_virtually(begin())
        assert refused.value.status == case["exit"]
    assert [call[0] for call in shard.calls] == case["calls"]
    if "warmup" in case:
        assert summary(shard.warmup) == case["warmup"]
