"""The double drives the real shard over its socket: recorded clients get what they got, others what is theirs."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from double import Stream
from driven_shard import NamedEngine, driven, finished, let_go, messages, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from played_sessions import played
from recording import START_UPS, Case, load_session, read_lines, session_names
from scripted_engine import Script, ScriptedEngine
from start_up import Flags, StartRefusedError, start
from tokenizers import Tokenizer
from waiting_line import ROUND, Client

from pageport.core import EngineClient, SamplingParams, load_tokenizer, parse_engine_config

MODES: dict[str, dict[str, bool]] = {
    "v3 with chunking": {},
    "v3 without chunking": {"chunking": False},
    "v3 with chunking and the router's prefix cache": {"prefix_caching": True},
    "v3 without chunking, with the router's prefix cache": {"chunking": False, "prefix_caching": True},
    "v2": {"v2": True},
}
# Little room for prompts, so that many are cut, or wait.
CHUNKING = Flags(max_batch_prefill_tokens=64, max_input_tokens=2000, max_total_tokens=4000)
WHOLE_PROMPTS = Flags(max_batch_prefill_tokens=2000, max_input_tokens=2000, max_total_tokens=4000)

# A stream that is silent for half a minute is about HTTP.
TOO_LONG = "idle stream for 35 s: keep-alive lines"
CASES = [
    (name, case.name)
    for name in session_names()
    for case in load_session(name).cases
    if case.name != TOO_LONG
]


# -- recorded clients ----------------------------------------------------------------------------------------


def flags_of(case: dict[str, Any]) -> Flags | None:
    """None where the router refuses them whatever the shard says."""
    try:
        flags = Flags.parse(case["flags"], case.get("environment", {}))
    except StartRefusedError:
        return None
    return None if flags.attention == "other" else flags


START_CASES = [case for case in read_lines(START_UPS) if flags_of(case) is not None]


@pytest.mark.parametrize("case", START_CASES, ids=lambda case: case["name"])
async def test_the_router_starts_on_it_with_the_recorded_flags(
    case: dict[str, Any], tokenizer: Tokenizer
) -> None:
    flags = flags_of(case)
    assert flags is not None
    chunking = case["info"].get("support_chunking", False)
    async with serving(ScriptedEngine(tokenizer), tokenizer, v2=case["v2"], chunking=chunking) as (calls, _):
        limits = await start(messages(case["v2"]), calls, flags)
    assert flags.max_input_tokens in (None, limits.max_input)
    assert flags.max_total_tokens in (None, limits.max_total)
    assert limits.pool == 16384


@pytest.mark.parametrize(("session", "name"), CASES, ids=str)
def test_recorded_clients_get_the_recorded_tokens(session: str, name: str, tokenizer: Tokenizer) -> None:
    """How they come over the calls may differ, because the shard's engine runs on by itself; what comes may not."""
    (case,) = [case for case in load_session(session).cases if case.name == name]
    expected = played(session, tokenizer)[name].streams
    streams = asyncio.run(visited(session, case, tokenizer))
    for arrival, (stream, theirs) in enumerate(zip(streams, expected, strict=True)):
        script = case.shard_scripts[min(arrival, len(case.shard_scripts) - 1)]
        if script.prefill_error or script.decode_error:
            assert stream.error or "[error]" in (stream.text or "")
        elif theirs.error is not None:
            # It shared a call with one that failed: with TGI's server it failed too, here it goes on.
            assert stream.text is not None
            assert len(stream.events) == stream.client.new
            assert stream.events[: len(theirs.events)] == theirs.events
        elif not theirs.gone:
            assert (stream.events, stream.text) == (theirs.events, theirs.text)


async def visited(session: str, case: Case, tokenizer: Tokenizer) -> list[Stream]:
    """What a case's clients get from the real shard. They come at once; health is asked for when they are done."""
    setting = load_session(session).setting
    flags = Flags.parse(setting["flags"], setting["environment"])
    engine = ScriptedEngine(tokenizer)
    streams: list[Stream] = []
    chunking = setting["info"].get("support_chunking", False)
    async with driven(engine, tokenizer, flags, v2=setting["v2"], chunking=chunking) as double:
        *first, last = case.shard_scripts
        engine.play_in_turn(first)
        engine.play(last)
        for visitor in case.visitors:
            if visitor.client is None:
                await finished(streams)
                assert await double.health()
            else:
                streams.append(double.ask(visitor.client))
                if visitor.leave_at is not None:
                    streams[-1].leave()
        await finished(streams)
    await let_go(engine)
    return streams


# -- any clients ---------------------------------------------------------------------------------------------

SCRIPTS = st.builds(
    Script,
    text=st.sampled_from([" one two three four five six seven eight", " Deep learning", " naïve 漢字 done"]),
    eos=st.booleans(),
    prefill_error=st.sampled_from([None] * 9 + ["out of blocks"]),
    decode_error=st.sampled_from([None] * 9 + ["device lost"]),
    decode_error_at=st.integers(1, 6),
    prefill_s=st.sampled_from([0.0, 0.0, 0.004]),
)


@dataclass(frozen=True)
class Arrival:
    """
    Attributes:
        pause: seconds until the next client comes.
        health: somebody asks for `/health` before it.
    """

    script: Script
    filler: str
    new: int
    leave_after: int | None
    pause: float
    health: bool


ARRIVALS = st.builds(
    Arrival,
    script=SCRIPTS,
    filler=st.sampled_from(["", " word" * 3, " word" * 40, " word" * 90, " word" * 600]),
    new=st.sampled_from([*range(1, 41), ROUND + 1]),
    leave_after=st.one_of(st.none(), st.none(), st.integers(0, 8)),
    pause=st.sampled_from([0.0, 0.0, 0.002, 0.01]),
    health=st.booleans(),
)


def rounds_of(script: Script, new: int, tokenizer: Tokenizer) -> list[list[int]]:
    """The tokens that a client gets, in rounds: each begins the script anew, as long as none ends by itself."""
    rounds = [tokens_of(script, min(new, ROUND), tokenizer)]
    if len(rounds[0]) == ROUND < new:
        rounds.append(tokens_of(script, ROUND, tokenizer))
    return rounds


def tokens_of(script: Script, count: int, tokenizer: Tokenizer) -> list[int]:
    steps = itertools.islice(script.steps(tokenizer), count)
    return [token for step in steps for token in step]


def check(stream: Stream, script: Script, tokenizer: Tokenizer) -> None:
    """That a client got its own tokens, all of them or up to where it or the engine gave up."""
    client = stream.client
    rounds = rounds_of(script, client.new or 0, tokenizer)
    expected = [token for tokens in rounds for token in tokens]
    fails_at = 0 if script.prefill_error else script.decode_error_at if script.decode_error else None
    got = [token for token, _ in stream.events]
    if stream.gone:
        assert len(got) == client.leave_after
        assert got == expected[: len(got)] or fails_at is not None
    elif fails_at is not None and fails_at < len(expected):
        assert got[:fails_at] == expected[:fails_at]
        assert stream.error or "[error]" in (stream.text or "")
    else:
        assert got == expected
        text = "".join(tokenizer.decode(tokens) for tokens in rounds)
        assert stream.text == text or "\N{REPLACEMENT CHARACTER}" in text  # cut inside a character


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(arrivals=st.lists(ARRIVALS, min_size=1, max_size=14), step_s=st.sampled_from([0.0, 0.0005]))
def test_any_clients_get_what_is_theirs(
    mode: str, arrivals: list[Arrival], step_s: float, tokenizer: Tokenizer
) -> None:
    async def drive() -> None:
        scripts = {f"Client {number}": arrival.script for number, arrival in enumerate(arrivals)}
        engine = NamedEngine(tokenizer, scripts, step_s=step_s)
        flags = CHUNKING if mode.startswith("v3 with chunking") else WHOLE_PROMPTS
        streams = []
        async with driven(engine, tokenizer, flags, **MODES[mode]) as double:
            for name, arrival in zip(scripts, arrivals, strict=True):
                if arrival.health:
                    assert await double.health()
                prompt = f"{name}:{arrival.filler}"
                streams.append(double.ask(Client(prompt, arrival.new, arrival.leave_after)))
                await asyncio.sleep(arrival.pause)
            await finished(streams)
        await let_go(engine)
        for stream, arrival in zip(streams, arrivals, strict=True):
            check(stream, arrival.script, tokenizer)

    asyncio.run(drive())


@pytest.mark.parametrize("mode", MODES)
async def test_the_engine_drops_those_who_leave(mode: str, tokenizer: Tokenizer) -> None:
    """Alone or beside others; their answers would take the engine longer than anybody waits here."""
    scripts = {name: Script(eos=False) for name in ("Alone", "Leaves", "Stays")}
    engine = NamedEngine(tokenizer, scripts, step_s=0.03)
    async with driven(engine, tokenizer, WHOLE_PROMPTS, **MODES[mode]) as double:
        await finished([double.ask(Client("Alone:", ROUND, leave_after=2))])
        stays = double.ask(Client("Stays:", 12))
        await finished([double.ask(Client("Leaves:", ROUND, leave_after=2)), stays])
    await let_go(engine)
    asked = [one for one in engine.submitted if ":" in one.prompt]  # the warm-up has no name
    assert {one.prompt.partition(":")[0]: one.aborted for one in asked} == {
        "Alone": True,
        "Stays": False,
        "Leaves": True,
    }
    assert [token for token, _ in stays.events] == tokens_of(scripts["Stays"], 12, tokenizer)


# -- the real engine -----------------------------------------------------------------------------------------


async def test_greedy_texts_are_the_engines_own(demo_model: Path) -> None:
    """Also where the router calls tokens cached that were never computed."""
    config = {"model": demo_model, "kv_cache_memory_bytes": 2**27, "max_model_len": 1024}
    engine = EngineClient(parse_engine_config(config))
    await engine.start()
    try:
        story = (
            "Once upon a time there was a king who had three sons, and the youngest was called a fool. " * 6
        )
        prompts = [f"{story}In the year {1900 + number % 4} there was a" for number in range(6)]
        expected = [await text_of(engine, prompt) for prompt in prompts]
        for mode in MODES:
            assert await texts_through(engine, mode, load_tokenizer(demo_model), prompts) == expected * 2
            async with asyncio.timeout(10):
                while engine.stats().kv_blocks_used or engine.stats().num_running:
                    await asyncio.sleep(0.02)
    finally:
        await engine.close()


async def texts_through(
    engine: EngineClient, mode: str, tokenizer: Tokenizer, prompts: list[str]
) -> list[str | None]:
    """What clients get who ask all of the prompts at once, twice, while another one leaves."""
    budget = 128 if mode.startswith("v3 with chunking") else 300
    flags = Flags(max_batch_prefill_tokens=budget, max_input_tokens=300, max_total_tokens=600)
    async with driven(engine, tokenizer, flags, **MODES[mode]) as double:
        gone = double.ask(Client("The end of the", 200, leave_after=5))
        streams = [double.ask(Client(prompt, 20)) for prompt in prompts]
        await finished(streams)
        again = [double.ask(Client(prompt, 20)) for prompt in prompts]
        await finished([gone, *again])
    assert (double.line.believed > 0) == MODES[mode].get("prefix_caching", False)
    return [stream.text for stream in [*streams, *again]]


async def text_of(engine: EngineClient, prompt: str) -> str:
    sampling = SamplingParams(temperature=0.0, max_tokens=20)
    return "".join([output.text async for output in engine.submit(prompt, sampling)])
