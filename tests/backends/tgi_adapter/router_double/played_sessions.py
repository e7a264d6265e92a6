"""The recorded clients on the double over the scripted shard, in no time: its calls, and what each client got."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache
from typing import Any

from double import RouterDouble, Stream
from recording import Call, Case, load_session
from stand_in import Behaviour, StandIn
from start_up import Flags, start
from tokenizers import Tokenizer
from virtual_time import run_virtually

from pageport.backends.tgi_adapter.pb import generate_v2_pb2, generate_v3_pb2


@dataclass(frozen=True)
class Played:
    """Attributes: streams: of the clients, in their order."""

    calls: list[Call]
    streams: list[Stream]


@cache
def played(name: str, tokenizer: Tokenizer) -> dict[str, Played]:
    """All cases of a session on one router and one shard, by name."""
    return run_virtually(_play(name, tokenizer))


async def _play(name: str, tokenizer: Tokenizer) -> dict[str, Played]:
    session = load_session(name)
    setting = session.setting
    pb: Any = generate_v2_pb2 if setting["v2"] else generate_v3_pb2
    behaviour = Behaviour(setting["info"], setting["answer"], setting["prune"], setting["step_s"])
    shard = StandIn(pb, tokenizer, behaviour)
    limits = await start(pb, shard, Flags.parse(setting["flags"], setting["environment"]))
    double = RouterDouble(pb, shard, limits, tokenizer)
    loop = asyncio.create_task(double.run())
    cases = {}
    for case in session.cases:
        if case.first is not None:
            double.line.next_request, double.line.next_batch = case.first
        shard.begin(case.scripts, case.failing_prefills)
        streams = await _visit(double, case)
        assert not loop.done(), loop.exception()
        cases[case.name] = Played(shard.calls, streams)
    free = None if double.line.allocator is None else double.line.allocator.num_free
    assert free in (None, limits.pool // limits.block_size - 1)
    loop.cancel()
    return cases


async def _visit(double: RouterDouble, case: Case) -> list[Stream]:
    """The case's clients come and go at their seconds; ends when the router has nothing to do."""
    clock = asyncio.get_running_loop()
    begin = clock.time()
    streams, checks = [], []
    # Clients of one moment come in the order in which the router has numbered them.
    for number, visitor in enumerate(case.visitors):
        await asyncio.sleep(begin + visitor.at + 1e-5 * number - clock.time())
        if visitor.client is None:
            checks.append(asyncio.create_task(double.health()))
            continue
        streams.append(double.ask(visitor.client))
        if visitor.leave_at is not None:
            clock.call_at(begin + visitor.leave_at, streams[-1].leave)
    assert all(await asyncio.gather(*checks))
    await double.idle.wait()
    return streams
