"""The async client with a real engine process on the tiny model: streams, cancellation, and death."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pageport.core import (
    ConfigError,
    EngineClient,
    EngineDeadError,
    FinishReason,
    InvalidRequestError,
    ModelError,
    PageportError,
    RequestOutput,
    RequestTimeoutError,
    SamplingParams,
    parse_engine_config,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True)
DEADLINE = 60.0  # seconds until a test gives up; nothing here takes long unless it is broken

pytestmark = pytest.mark.asyncio(loop_scope="module")


def make_client(model: Path, **arguments: Any) -> EngineClient:
    defaults = {"model": model, "dtype": "float32", "kv_cache_memory_bytes": 1 << 20, "num_threads": 1}
    return EngineClient(parse_engine_config({**defaults, **arguments}))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tiny_model: Path) -> AsyncIterator[EngineClient]:
    client = make_client(tiny_model)
    await client.start()
    yield client
    await client.close()


async def collect(stream: AsyncIterator[RequestOutput]) -> RequestOutput:
    """The whole stream as one output."""
    whole: RequestOutput | None = None
    async for output in stream:
        if whole is None:
            whole = output
        else:
            whole.merge(output)
    assert whole is not None
    return whole


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that messages from the engine will make true."""
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.005)


def is_idle(client: EngineClient) -> bool:
    stats = client.stats()
    return stats.num_running == stats.num_waiting == stats.kv_blocks_used == 0


async def test_streams_tokens_one_step_at_a_time(client: EngineClient) -> None:
    sizes = [len(output.token_ids) async for output in client.submit("Hello", GREEDY)]
    assert sum(sizes) == 20 and len(sizes) > 5
    assert client.health() and is_idle(client)


async def test_text_prompt_equals_token_prompt_and_repeats(client: EngineClient) -> None:
    text = await collect(client.submit("abc", GREEDY))
    tokens = await collect(client.submit([64, 65, 66], GREEDY))
    assert text.num_prompt_tokens == 3
    assert text.token_ids == tokens.token_ids != []


async def test_many_at_once_each_get_their_own(client: EngineClient) -> None:
    prompts = [[i, i + 1, i + 2] for i in range(30)]
    alone = [(await collect(client.submit(prompt, GREEDY))).token_ids for prompt in prompts]
    together = await asyncio.gather(*(collect(client.submit(prompt, GREEDY)) for prompt in prompts))
    assert [output.token_ids for output in together] == alone
    assert client.stats().peak_running > 1


async def test_leaving_the_stream_frees_everything(client: EngineClient) -> None:
    async for _ in client.submit("Hello", LONG):
        break
    await until(lambda: is_idle(client))
    task = asyncio.create_task(collect(client.submit("Hello", LONG)))
    await until(lambda: client.stats().num_running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: is_idle(client))


async def test_abort_ends_the_stream_with_a_reason(client: EngineClient) -> None:
    last = None
    async for output in client.submit("Hello", LONG, request_id="mine"):
        last = output
        await client.abort("mine")
    assert last is not None and last.finish_reason is FinishReason.CANCELLED and last.request_finished
    assert last.num_output_tokens < 80
    await client.abort("unknown")
    await until(lambda: is_idle(client))


async def test_timeout_names_the_limit_and_frees_blocks(client: EngineClient) -> None:
    with pytest.raises(RequestTimeoutError, match=r"timeout: .* 0\.001 s"):
        await collect(client.submit("Hello", LONG, timeout=0.001))
    await until(lambda: is_idle(client))


async def test_a_slow_reader_gets_merged_deltas_and_misses_nothing(client: EngineClient) -> None:
    expected = (await collect(client.submit("Hello", LONG))).token_ids
    stream = client.submit("Hello", LONG)
    first = await anext(stream)
    await until(lambda: is_idle(client))
    rest = [output async for output in stream]
    assert len(rest) == 1, "what piled up arrives as one output"
    assert first.token_ids + rest[0].token_ids == expected


async def test_random_cancels_leave_nothing_behind(client: EngineClient) -> None:
    rng = random.Random(1)

    async def one(index: int) -> None:
        keep = rng.randint(0, 12)
        stream = client.submit([index % 250, 1, 2], SamplingParams(max_tokens=30, n=rng.choice([1, 1, 2])))
        async for _ in stream:
            keep -= 1
            if keep < 0:
                break
        await stream.aclose()  # type: ignore[attr-defined]

    await asyncio.gather(*(one(index) for index in range(200)))
    await until(lambda: is_idle(client))


@pytest.mark.parametrize(
    ("prompt", "params", "field"),
    [
        ("", {}, "prompt"),
        ("x" * 200, {}, "prompt"),
        ([300], {}, "prompt"),
        ("a", {"max_tokens": 10**9}, "max_tokens"),
        ("a", {"logit_bias": {999: 1.0}}, "logit_bias"),
    ],
)
async def test_bad_requests_are_refused_and_others_served(
    client: EngineClient, prompt: str | list[int], params: dict[str, Any], field: str
) -> None:
    good = asyncio.create_task(collect(client.submit("Hello", GREEDY)))
    with pytest.raises(InvalidRequestError) as caught:
        await collect(client.submit(prompt, SamplingParams(**params)))
    assert caught.value.field == field
    assert len((await good).token_ids) == 20


async def test_a_wrong_configuration_fails_the_start_with_its_reason(
    tiny_model: Path, tmp_path: Path
) -> None:
    wrong: list[tuple[dict[str, Any], type[PageportError], str]] = [
        ({"max_model_len": 1000}, ConfigError, "max_model_len: 1000 is more than the model's 96"),
        ({"model": tmp_path}, ModelError, "config.json cannot be read"),
    ]
    for arguments, kind, message in wrong:
        client = make_client(**{"model": tiny_model, "tokenizer": tiny_model, **arguments})
        with pytest.raises(kind, match=message):
            await asyncio.wait_for(client.start(), DEADLINE)
        assert not client.health()
        await client.close()


async def test_close_ends_the_process_and_running_requests(tiny_model: Path) -> None:
    client = make_client(tiny_model)
    await client.start()
    pid = client.engine_pid
    assert pid is not None
    task = asyncio.create_task(collect(client.submit("Hello", LONG)))
    await until(lambda: client.stats().num_running == 1)
    await client.close()
    with pytest.raises(EngineDeadError, match="the engine was stopped"):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_engine_that_cannot_be_started_is_an_error_and_not_a_wait(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pageport.core.child_process.python_executable", lambda: "/nowhere/python3")
    client = make_client(tiny_model)
    with pytest.raises(EngineDeadError, match="/nowhere/python3"):
        await asyncio.wait_for(client.start(), DEADLINE)
    with pytest.raises(EngineDeadError):
        await asyncio.wait_for(collect(client.submit("Hello", GREEDY)), DEADLINE)
    assert not client.health()
    await client.close()
