"""The double makes the calls that TGI's routers were recorded to make, for the same clients: every one, every value."""

from __future__ import annotations

from typing import Any

import pytest
from double import RouterDouble
from played_sessions import played
from recording import Call, load_session, session_names, without_gap
from scripted_engine import Script
from stand_in import Behaviour, StandIn
from start_up import Flags, start
from tokenizers import Tokenizer
from virtual_time import run_virtually

from pageport.backends.tgi_adapter.pb import generate_v3_pb2

CASES = [(name, case.name) for name in session_names() for case in load_session(name).cases]


@pytest.mark.parametrize(("session", "name"), CASES, ids=lambda value: str(value))
def test_the_double_calls_what_the_router_called(session: str, name: str, tokenizer: Tokenizer) -> None:
    (case,) = [case for case in load_session(session).cases if case.name == name]
    assert list(without_gap(played(session, tokenizer)[name].calls, case.calls)) == case.calls


@pytest.mark.parametrize("fault", ["an unknown request", "no tokens"])
def test_what_would_hang_the_router_ends_the_double(fault: str, tokenizer: Tokenizer) -> None:
    """In the recordings of such shards one `Prefill` is all that was ever called, and every client waits for ever."""

    class Broken(StandIn):
        async def Prefill(self, request: Any) -> Any:
            answer = await super().Prefill(request)
            if fault == "no tokens":
                answer.generations[0].ClearField("tokens")
            else:
                answer.generations[0].request_id = 999
            return answer

    async def drive() -> list[Call]:
        session = load_session("chunking")
        shard = Broken(
            generate_v3_pb2, tokenizer, Behaviour(session.setting["info"], session.setting["answer"])
        )
        double = RouterDouble(generate_v3_pb2, shard, await start(generate_v3_pb2, shard, Flags()), tokenizer)
        shard.begin([Script()])
        double.ask(session.cases[0].visitors[0].client)
        with pytest.raises(AssertionError):
            await double.run()
        return shard.calls

    assert [call[0] for call in run_virtually(drive())] == ["Prefill"]
