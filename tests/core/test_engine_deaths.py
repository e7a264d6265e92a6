"""Real engine processes that are killed, kill themselves or do not come up: what their clients see."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import pytest_asyncio

from pageport.core import (
    EngineClient,
    EngineConfig,
    EngineDeadError,
    FinishReason,
    RequestOutput,
    RequestTimeoutError,
    SamplingParams,
    parse_engine_config,
)

BREAKING = 251  # a prompt that begins with this breaks the engine, see poisoned_engine.py
LONG = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
DEADLINE = 60.0  # seconds until a test gives up; nothing here takes long unless it is broken

pytestmark = pytest.mark.asyncio(loop_scope="module")


def start_poisoned_engine(config: EngineConfig, channel: socket.socket) -> subprocess.Popen[bytes]:
    with channel:
        program = str(Path(__file__).with_name("poisoned_engine.py"))
        return subprocess.Popen(
            [sys.executable, program, str(channel.fileno())], pass_fds=(channel.fileno(),)
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tiny_model: Path) -> AsyncIterator[EngineClient]:
    """A client whose engines are the poisoned ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pageport.core.engine_supervisor.start_engine_process", start_poisoned_engine)
        client = EngineClient(
            parse_engine_config(
                {"model": tiny_model, "dtype": "float32", "kv_cache_memory_bytes": 1 << 20, "num_threads": 1}
            )
        )
        await client.start()
        yield client
        await client.close()


class Reader:
    """Reads a stream to its end; knows what has come so far."""

    def __init__(self, stream: AsyncIterator[RequestOutput]) -> None:
        self.outputs: list[RequestOutput] = []
        self.task = asyncio.create_task(self._read(cast("AsyncGenerator[RequestOutput]", stream)))

    async def _read(self, stream: AsyncGenerator[RequestOutput]) -> list[RequestOutput]:
        async for output in stream:
            self.outputs.append(output)
        return self.outputs

    @property
    def num_tokens(self) -> int:
        return sum(len(output.token_ids) for output in self.outputs)

    async def answers(self) -> list[tuple[str, list[int], FinishReason | None]]:
        """Text, tokens and reason of each sequence."""
        await asyncio.wait_for(self.task, DEADLINE)
        by_index: dict[int, list[RequestOutput]] = {}
        for output in self.outputs:
            by_index.setdefault(output.index, []).append(output)
        return [
            (
                "".join(output.text for output in outputs),
                [token for output in outputs for token in output.token_ids],
                outputs[-1].finish_reason,
            )
            for _, outputs in sorted(by_index.items())
        ]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that messages from the engine will make true."""
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.002)


def is_idle(client: EngineClient) -> bool:
    stats = client.stats()
    return stats.num_running == stats.num_waiting == stats.kv_blocks_used == 0


def kill(client: EngineClient) -> int:
    pid = client.engine_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def kill_and_notice(client: EngineClient) -> None:
    kill(client)
    await until(lambda: not client.health())


async def test_many_streams_survive_deaths_at_any_moment(client: EngineClient) -> None:
    """Greedy, seeded, several sequences, penalties, stop strings: killed each time that something has come again."""
    rng = random.Random(3)
    requests: list[tuple[list[int], SamplingParams]] = []
    for index in range(24):
        params: dict[str, Any] = {"max_tokens": rng.randint(40, 80), "seed": index, "ignore_eos": True}
        params |= {"temperature": rng.choice([0.0, 1.0]), "n": rng.choice([1, 1, 2])}
        params |= rng.choice(
            [{}, {"frequency_penalty": 0.7, "repetition_penalty": 1.2}, {"stop": ["Zz", "qu"]}]
        )
        requests.append(([index, 1, 2], SamplingParams(**params)))
    expected = [await Reader(client.submit(*request)).answers() for request in requests]
    await until(lambda: is_idle(client))
    before = client.stats()
    readers = [Reader(client.submit(*request)) for request in requests]
    pids = set()
    for _ in range(3):
        seen = sum(reader.num_tokens for reader in readers)
        wanted = seen + rng.randint(1, 200)
        await until(lambda wanted=wanted: sum(reader.num_tokens for reader in readers) >= wanted)  # type: ignore[misc]
        pids.add(kill(client))
        await until(lambda: client.engine_pid not in pids)
    assert [await reader.answers() for reader in readers] == expected
    await until(lambda: is_idle(client))
    stats = client.stats()
    assert client.health() and len(pids) == 3
    assert stats.finished_requests - before.finished_requests == 24
    tokens = sum(len(ids) for answers in expected for _, ids, _ in answers)
    assert stats.generation_tokens - before.generation_tokens == tokens


async def test_requests_that_arrive_while_the_engine_is_away_wait_for_the_next(client: EngineClient) -> None:
    await kill_and_notice(client)
    readers = [Reader(client.submit([i], LONG)) for i in range(4)]
    await until(lambda: client.stats().num_waiting == 4)
    assert not client.health()
    assert [len(tokens) for reader in readers for _, tokens, _ in await reader.answers()] == [80] * 4
    assert client.health()


async def test_aborts_timeouts_and_leaving_do_not_wait_for_the_next_engine(client: EngineClient) -> None:
    names = ("aborted", "left", "timed", "goes on")
    readers = {name: Reader(client.submit([1], LONG, request_id=name)) for name in names[:2]}
    readers["timed"] = Reader(client.submit([1], LONG, timeout=1.0))
    readers["goes on"] = Reader(client.submit([1], LONG))
    await until(lambda: min(reader.num_tokens for reader in readers.values()) > 0)
    first = kill(client)
    await until(lambda: client.engine_pid != first)
    os.kill(client.engine_pid or 0, signal.SIGSTOP)
    try:
        waits = Reader(client.submit([1], LONG, request_id="waits"))
        await until(lambda: client.stats().num_waiting == 5)
        await client.abort("aborted")
        await client.abort("waits")
        readers["left"].task.cancel()
        ((_, tokens, reason),) = await readers["aborted"].answers()
        assert reason is FinishReason.CANCELLED and 0 < len(tokens) < 80
        assert [reason for _, _, reason in await waits.answers()] == [FinishReason.CANCELLED]
        with pytest.raises(RequestTimeoutError, match=r"1\.0 s"):
            await readers["timed"].answers()
        with pytest.raises(asyncio.CancelledError):
            await readers["left"].answers()
        assert client.stats().num_waiting == 1 and not client.health()
    finally:
        os.kill(client.engine_pid or 0, signal.SIGCONT)
    assert [len(tokens) for _, tokens, _ in await readers["goes on"].answers()] == [80]
    await until(lambda: is_idle(client))


async def test_a_death_before_the_next_engine_serves_makes_the_pause_longer(client: EngineClient) -> None:
    reader = Reader(client.submit([1], LONG))
    await until(lambda: reader.num_tokens > 0)
    pids = {kill(client)}
    await until(lambda: client.engine_pid not in pids)
    pids.add(kill(client))
    await until(lambda: client.engine_pid not in pids)
    assert [len(tokens) for _, tokens, _ in await reader.answers()] == [80]


async def test_a_request_that_breaks_engines_is_ended_and_the_others_are_not(client: EngineClient) -> None:
    readers = [Reader(client.submit([i], LONG)) for i in range(3)]
    await until(lambda: min(reader.num_tokens for reader in readers) > 0)
    poison = Reader(client.submit([BREAKING], LONG))
    with pytest.raises(EngineDeadError, match="died under this request") as caught:
        await poison.answers()
    assert "ended with status 1: a step could not be computed: ArithmeticError('no step" in str(caught.value)
    for reader in readers:
        assert [len(tokens) for _, tokens, _ in await reader.answers()] == [80]
    await until(lambda: is_idle(client))


async def test_an_engine_that_does_not_come_up_again_is_given_up_and_everyone_hears(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = tmp_path / "dies"
    monkeypatch.setenv("PAGEPORT_TEST_DIES", str(dies))
    monkeypatch.setattr("pageport.core.engine_supervisor.start_engine_process", start_poisoned_engine)
    client = EngineClient(parse_engine_config({"model": tiny_model, "kv_cache_memory_bytes": 1 << 20}))
    await client.start()
    dead = asyncio.create_task(client.wait_dead())
    try:
        patient = Reader(client.submit([1], LONG))
        await until(lambda: patient.num_tokens > 0)
        dies.write_text("-9")
        pids = {kill(client)}
        while len(pids) < 6:  # somebody kills what was started, again and again, and then stops
            await until(lambda: client.engine_pid not in pids)
            pids.add(client.engine_pid or 0)
        dies.unlink()
        assert [len(tokens) for _, tokens, _ in await patient.answers()] == [80]
        assert not dead.done()
        reader = Reader(client.submit([1], LONG))
        await until(lambda: reader.num_tokens > 0)
        dies.write_text("3")
        kill(client)
        with pytest.raises(EngineDeadError, match="died 3 times in a row before it could serve"):
            await reader.answers()
        assert "3 times in a row" in str(await asyncio.wait_for(dead, DEADLINE))
        with pytest.raises(EngineDeadError, match="3 times in a row"):
            await Reader(client.submit([1], LONG)).answers()
        assert not client.health()
    finally:
        await client.close()


async def test_closing_while_an_engine_starts_does_not_wait_for_it(
    client: EngineClient, tiny_model: Path
) -> None:
    other = EngineClient(parse_engine_config({"model": tiny_model, "kv_cache_memory_bytes": 1 << 20}))
    await other.start()
    reader = Reader(other.submit([1], LONG))
    await until(lambda: reader.num_tokens > 0)
    first = kill(other)
    await until(lambda: other.engine_pid != first)
    second = other.engine_pid
    await other.close()
    with pytest.raises(EngineDeadError, match="the engine was stopped"):
        await reader.answers()
    assert second is not None and not psutil.pid_exists(second)
    with pytest.raises(EngineDeadError, match="the engine was stopped"):
        await Reader(other.submit([1], LONG)).answers()
