"""The double drives the real shard over its socket: recorded clients get the recorded tokens, others get theirs."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from double import Client, Limits, RouterDouble, ShardFailed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_engine import Script, ScriptedEngine
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.pb import generate_v2_pb2, generate_v3_pb2
from pageport.backends.tgi_adapter.pb.generate_v2_pb2_grpc import TextGenerationServiceStub as V2Stub
from pageport.backends.tgi_adapter.pb.generate_v3_pb2_grpc import TextGenerationServiceStub as V3Stub
from pageport.backends.tgi_adapter.shard.server import ShardServer
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import (
    EngineClient,
    EngineClientProtocol,
    SamplingParams,
    load_tokenizer,
    parse_engine_config,
)

DATA = Path(__file__).parents[3] / "data" / "tgi" / "rpc"
MODES = {
    "v3 with chunking": Limits(chunking=True),
    "v3 without chunking": Limits(chunking=False),
    "v2": Limits(chunking=False, v2=True),
}


class Calls:
    """A gRPC stub whose errors are the double's."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)

        async def call(request: Any) -> Any:
            try:
                return await method(request)
            except grpc.aio.AioRpcError as error:
                if name not in ("Prefill", "Decode"):
                    raise AssertionError(f"{name} must never fail: {error.details()}") from error
                raise ShardFailed(error.details()) from None

        return call


@asynccontextmanager
async def driven(
    engine: EngineClientProtocol, tokenizer: Tokenizer, limits: Limits, **start: int
) -> AsyncIterator[tuple[RouterDouble, ShardServer]]:
    """A double over a shard over an engine; nothing is left in the shard at the end."""
    with tempfile.TemporaryDirectory(prefix="shard-") as folder:
        prefix = str(Path(folder) / "s")
        server = ShardServer(engine, tokenizer, ShardSettings(prefix, support_chunking=limits.chunking))
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"unix://{prefix}-0") as channel:
                pb = generate_v2_pb2 if limits.v2 else generate_v3_pb2
                stub = (V2Stub if limits.v2 else V3Stub)(channel)  # type: ignore[no-untyped-call]
                double = RouterDouble(pb, Calls(stub), limits, tokenizer)
                if limits.v2:
                    start = {"max_input_tokens": 1023, "max_total_tokens": 1024, **start}
                await double.start(**start)
                loop = asyncio.create_task(double.run())
                # Whatever the double finds wrong ends the test at once.
                watched = asyncio.current_task()
                loop.add_done_callback(lambda task: task.cancelled() or watched is None or watched.cancel())
                try:
                    yield double, server
                finally:
                    if loop.done():
                        loop.result()
                    loop.cancel()
        finally:
            await server.stop()


async def settled(double: RouterDouble, server: ShardServer, clients: list[Client]) -> None:
    async with asyncio.timeout(8):
        await asyncio.gather(*(client.done.wait() for client in clients if client.leave_after != 0))
        while double.entries or len(server.core.batches):
            await asyncio.sleep(0.01)


# The scripted engine plays a silent step in its own way; half a minute of silence is about HTTP.
LEFT_OUT = ("no token for a request in one step", "idle stream for 35 s: keep-alive lines")


def recorded() -> list[Any]:
    cases = []
    for file in sorted(DATA.glob("*.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            case = json.loads(line)
            streams = [client for client in case["clients"] if client["path"] == "/generate_stream"]
            failing = any(call[-1] is True for call in case["calls"])
            complete = all(one["end"] is not None for one in case["given"].values())
            if case["name"] in LEFT_OUT:
                continue
            if streams and not failing and complete and len(streams) == len(case["given"]):
                cases.append(pytest.param({**case, "clients": streams}, id=f"{file.stem}: {case['name']}"))
    return cases


@pytest.mark.parametrize("case", recorded())
async def test_recorded_clients_get_the_recorded_tokens(case: dict[str, Any], tokenizer: Tokenizer) -> None:
    """How they come over the calls may differ, because the shard's engine runs on by itself; what comes may not."""
    engine = ScriptedEngine(tokenizer)
    engine.play(Script.parse(case["scripts"][0]))
    limits = Limits(chunking=bool(case["setting"]["info"].get("support_chunking")))
    clients = [Client(c["prompt"], c["parameters"]["max_new_tokens"]) for c in case["clients"]]
    async with driven(engine, tokenizer, limits) as (double, server):
        for client in clients:
            double.ask(client)
        await settled(double, server, clients)
    assert engine.num_running == 0
    got = sorted(
        [[token for token, _ in client.events], [text for _, text in client.events], client.text]
        for client in clients
    )
    expected = sorted([one["ids"], one["texts"], one["end"][0]] for one in case["given"].values())
    assert got == expected


CLIENTS = st.builds(
    Client,
    prompt=st.sampled_from(["Hi", "What is Deep Learning?", " word" * 60]),
    max_new_tokens=st.integers(1, 30),
    leave_after=st.one_of(st.none(), st.none(), st.integers(0, 8)),
)
FAULTS = st.sampled_from(
    [{}, {}, {}, {"prefill_error": "out of blocks"}, {"decode_error": "lost", "decode_error_at": 3}]
)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    traffic=st.lists(
        st.tuples(CLIENTS, FAULTS, st.sampled_from([0.0, 0.0, 0.002, 0.01])), min_size=1, max_size=14
    ),
    texts=st.lists(st.sampled_from([" one two three four five", " Deep learning"]), min_size=1, max_size=3),
)
def test_any_traffic_ends_well(mode: str, traffic: list[Any], texts: list[str], tokenizer: Tokenizer) -> None:
    async def drive() -> None:
        engine = ScriptedEngine(tokenizer, step_s=0.001)
        clients = [replace(client, events=[], done=asyncio.Event()) for client, _, _ in traffic]
        async with driven(engine, tokenizer, MODES[mode]) as (double, server):
            engine.play_in_turn(
                Script(texts[number % len(texts)], eos=number % 2 == 0, **fault)
                for number, (_, fault, _) in enumerate(traffic)
            )
            for client, (_, _, pause) in zip(clients, traffic, strict=True):
                double.ask(client)
                await asyncio.sleep(pause)
            with suppress(ShardFailed):  # where it gets a script that was meant for a client who has left
                await double.liveness()
            await settled(double, server, clients)
        assert engine.num_running == 0
        for client in clients:
            if client.leave_after is None:
                assert client.text is not None or client.error
                assert len(client.events) <= client.max_new_tokens + 1

    asyncio.run(drive())


@pytest.mark.parametrize("mode", MODES)
async def test_greedy_texts_are_the_engines_own(mode: str, demo_model: Path) -> None:
    engine = EngineClient(
        parse_engine_config({"model": demo_model, "kv_cache_memory_bytes": 2**27, "max_model_len": 1024})
    )
    await engine.start()
    try:
        tokenizer = load_tokenizer(demo_model)
        prompts = [f"In the year {1900 + number} there was a" for number in range(6)]
        expected = []
        for prompt in prompts:
            sampling = SamplingParams(temperature=0.0, max_tokens=20)
            expected.append("".join([output.text async for output in engine.submit(prompt, sampling)]))
        clients = [Client(prompt, 20) for prompt in prompts]
        gone = Client("The end of the", 200, leave_after=5)
        async with driven(engine, tokenizer, replace(MODES[mode], prefill_tokens=1024)) as (double, server):
            for client in [*clients, gone]:
                double.ask(client)
            await settled(double, server, [*clients, gone])
        assert [client.text for client in clients] == expected
        deadline = time.monotonic() + 10
        while engine.stats().kv_blocks_used:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
    finally:
        await engine.close()
