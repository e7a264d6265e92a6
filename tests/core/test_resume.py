"""Engines that die at any step: the answers are those of one engine that lives, delta for delta nothing twice."""

from __future__ import annotations

import copy
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.core import (
    Engine,
    EngineRequest,
    EngineStats,
    FinishReason,
    InvalidRequestError,
    LogprobsMode,
    PenaltyStyle,
    RequestOutput,
    SamplingParams,
    SequenceProgress,
    StopMatch,
    Watermark,
    parse_engine_config,
)
from pageport.core.flight import Flight
from pageport.core.flight_control import FlightControl
from pageport.core.messages import AbortRequest, ToEngine

Prompt = tuple[int, ...]
Asked = tuple[Prompt, SamplingParams]

# Tokens of the tiny model's byte tokenizer: A to Z, and the two bytes of each of é, ê, ë. So there is text, characters
# take one or two tokens, and some never come to an end.
TEXT = dict.fromkeys([*range(32, 58), 127, 102, 103, 104], 40.0)


class RecordingMailbox:
    """Keeps every delta as it came."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []

    def put(self, output: RequestOutput) -> None:
        self.outputs.append(copy.deepcopy(output))

    def fail(self, error: Exception) -> None:
        raise error


class MortalEngine:
    """What a client and its engine processes do together, in this process and step by step."""

    def __init__(self, model: Path, **arguments: Any) -> None:
        defaults = {"model": model, "dtype": "float32", "block_size": 4, "kv_cache_memory_bytes": 1 << 20}
        self._config = parse_engine_config({**defaults, **arguments})
        self.engine = Engine(self._config)
        self._sent: list[ToEngine] = []
        self._heard_stats = self._stats_before = EngineStats()
        self.flights = FlightControl(self._sent.append)
        self.flights.engine_ready()

    def launch(self, *requests: Asked) -> list[RecordingMailbox]:
        mailboxes = []
        for number, (prompt, params) in enumerate(requests):
            request = EngineRequest(str(number), prompt, params, time.monotonic(), params.seed or 0)
            flight = Flight(request)
            flight.mailbox = RecordingMailbox()  # type: ignore[assignment]
            mailboxes.append(flight.mailbox)
            self.flights.launch(flight)
        return mailboxes

    def step(self, *, heard: bool = True) -> bool:
        """One step, whose outputs reach the client or die with the engine; whether there was anything to do."""
        self._hear()
        busy = self.engine.has_work
        outputs = self.engine.step() if busy else []
        self.engine.check_integrity()
        if heard:
            self._heard_stats = self.engine.stats()
            self.flights.outputs_arrived(outputs)
        return busy or bool(self._sent)

    def token(self) -> None:
        """As many steps as it takes to hear of one more token."""
        before = self.stats().generation_tokens
        while self.stats().generation_tokens == before:
            assert self.step()

    def kill(self) -> None:
        self._stats_before = self.stats()
        self._heard_stats = EngineStats()
        self.engine = Engine(self._config)
        self.flights.engine_died("was killed")
        self._sent.clear()
        self.flights.engine_ready()

    def finish(self) -> EngineStats:
        while self.step():
            pass
        assert self.engine.stats().kv_blocks_used == 0
        return self.stats()

    def stats(self) -> EngineStats:
        """What the client knows: figures travel with outputs."""
        return self._heard_stats.after(self._stats_before)

    def _hear(self) -> None:
        for message in self._sent:
            if isinstance(message, EngineRequest):
                self.engine.add_request(message)
            elif isinstance(message, AbortRequest):
                self.flights.outputs_arrived(self.engine.abort(message.request_id))
        self._sent.clear()


def answers(mailboxes: list[Any]) -> list[dict[int, RequestOutput]]:
    """The whole of each sequence of each request, from deltas that only ever add."""
    wholes = []
    for mailbox in mailboxes:
        whole: dict[int, RequestOutput] = {}
        for delta in mailbox.outputs:
            known = whole.get(delta.index)
            assert known is None or known.finish_reason is None, "a sequence ends once"
            assert (delta.prompt_logprobs is None) or (known is None and delta.index == 0)
            if known is None:
                whole[delta.index] = copy.deepcopy(delta)
            else:
                known.merge(delta)
            assert delta.num_output_tokens == len(whole[delta.index].token_ids)
        assert [o.request_finished for o in mailbox.outputs].count(True) == 1 and mailbox.outputs[
            -1
        ].request_finished
        wholes.append(whole)
    return wholes


def comparable(output: RequestOutput) -> tuple[Any, ...]:
    """All that is exact in an answer."""
    return (
        output.text,
        output.token_ids,
        output.token_texts,
        output.finish_reason,
        output.stop_reason,
        output.num_output_tokens,
        output.num_prompt_tokens,
    )


def logprobs(positions: list[Any] | None) -> list[float]:
    """All values, likeliest first: which of two equals stands before the other is left open."""
    return [value.logprob for position in positions or [] for value in (position or {}).values()]


def assert_same(resumed: list[Any], undisturbed: list[Any]) -> None:
    for got, expected in zip(answers(resumed), answers(undisturbed), strict=True):
        assert {index: comparable(output) for index, output in got.items()} == {
            index: comparable(output) for index, output in expected.items()
        }
        for index, output in got.items():
            other = expected[index]
            assert output.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-4)
            assert logprobs(output.logprobs) == pytest.approx(logprobs(other.logprobs), abs=1e-4)
            assert logprobs(output.prompt_logprobs) == pytest.approx(
                logprobs(other.prompt_logprobs), abs=1e-4
            )


def random_request(rng: random.Random) -> Asked:
    prompt = tuple(rng.choices(range(256), k=rng.randint(1, 30)))
    max_tokens = rng.randint(2, 24)
    params: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": rng.choice([0.0, 0.7, 1.5]),
        "seed": rng.randrange(1000),
        "n": rng.choice([1, 1, 2, 3]),
        "logit_bias": rng.choice([None, TEXT]),
        "ignore_eos": rng.random() < 0.7,
        "token_texts": rng.random() < 0.5,
        "min_tokens": rng.choice([0, 0, max_tokens // 2]),
    }
    if rng.random() < 0.4:
        params |= {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4}
    if rng.random() < 0.4:
        params |= {"top_p": 0.8, "top_k": 20}
    if rng.random() < 0.4:
        params |= {"stop": tuple("".join(rng.choices("ABCDEFGH", k=2)) for _ in range(12))}
        params |= {"include_stop_str_in_output": rng.random() < 0.5}
        params |= {"stop_match": rng.choice(list(StopMatch))}
    if rng.random() < 0.4:
        params |= {"logprobs": 2, "prompt_logprobs": 1, "logprobs_mode": rng.choice(list(LogprobsMode))}
    if rng.random() < 0.3:
        params |= {"watermark": Watermark(), "penalty_style": PenaltyStyle.SHARE}
    return prompt, SamplingParams(**params)


@given(
    seed=st.integers(0, 10**6),
    deaths=st.lists(st.integers(1, 15), min_size=1, max_size=4),
    tight=st.booleans(),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_any_requests_under_any_deaths(tiny_model: Path, seed: int, deaths: list[int], tight: bool) -> None:
    rng = random.Random(seed)
    requests = [random_request(rng) for _ in range(rng.randint(1, 4))]
    arguments = (
        {"kv_cache_memory_bytes": 26 * 1024, "max_num_batched_tokens": 16, "watermark": 0.0} if tight else {}
    )
    calm = MortalEngine(tiny_model, **arguments)
    undisturbed = calm.launch(*requests)
    expected = calm.finish()
    mortal = MortalEngine(tiny_model, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pageport.core.flight_control.SUSPICIOUS_DEATHS", 100
        )  # these requests are only unlucky
        resumed = mortal.launch(*requests)
        for steps in deaths:
            for _ in range(steps):
                mortal.step()
            mortal.step(heard=rng.random() < 0.5)
            mortal.kill()
        stats = mortal.finish()
    assert_same(resumed, undisturbed)
    assert stats.finished_requests == expected.finished_requests == len(requests)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exact_recompute_makes_it_the_same_to_the_last_bit(tiny_model: Path, dtype: str) -> None:
    rng = random.Random(5)
    params: dict[str, Any] = {"seed": 7, "max_tokens": 30, "ignore_eos": True, "logprobs": 0}
    requests = [
        (tuple(rng.choices(range(256), k=rng.randint(1, 40))), SamplingParams(temperature=heat, **params))
        for heat in (0.0, 0.0, 1.0, 1.0)
    ]
    calm = MortalEngine(tiny_model, dtype=dtype, exact_recompute=True)
    undisturbed = calm.launch(*requests)
    calm.finish()
    mortal = MortalEngine(tiny_model, dtype=dtype, exact_recompute=True)
    resumed = mortal.launch(*requests)
    for _ in range(3):
        for _ in range(rng.randint(1, 6)):
            mortal.token()
        mortal.kill()
    mortal.finish()
    for got, expected in zip(answers(resumed), answers(undisturbed), strict=True):
        assert got[0].token_ids == expected[0].token_ids
        assert logprobs(got[0].logprobs) == logprobs(expected[0].logprobs)


def greedy(**params: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0.0, "max_tokens": 20, "logit_bias": TEXT, "ignore_eos": True, **params}
    )


def answer(model: Path, request: Asked, *, deaths: int = 0) -> tuple[RequestOutput, list[RequestOutput]]:
    """The answer of one sequence and its deltas; an engine dies after each of the first `deaths` tokens."""
    mortal = MortalEngine(model)
    (mailbox,) = mortal.launch(request)
    for _ in range(deaths):
        mortal.token()
        mortal.kill()
    mortal.finish()
    return answers([mailbox])[0][0], mailbox.outputs


def test_a_stop_string_that_spans_engines(tiny_model: Path) -> None:
    free, _ = answer(tiny_model, ((4, 5, 6), greedy()))
    stop = free.text[5:9]
    assert len(free.text) == 20 and free.text.find(stop) == 5, "each token is a letter"
    stopped, deltas = answer(tiny_model, ((4, 5, 6), greedy(stop=(stop,))), deaths=8)
    assert (stopped.text, stopped.stop_reason) == (free.text[:5], stop)
    assert [delta.text for delta in deltas] == [*free.text[:5], "", "", "", ""]


def test_what_looked_like_a_stop_string_comes_out_once(tiny_model: Path) -> None:
    free, _ = answer(tiny_model, ((4, 5, 6), greedy()))
    almost = free.text[5:8] + "?"
    passed, deltas = answer(tiny_model, ((4, 5, 6), greedy(stop=(almost,))), deaths=19)
    assert passed.text == free.text
    assert [delta.text for delta in deltas[5:9]] == ["", "", "", free.text[5:9]]


def test_log_probabilities_of_the_prompt_are_delivered_once(tiny_model: Path) -> None:
    request = ((4, 5, 6, 7, 8), greedy(prompt_logprobs=1, max_tokens=3))
    mortal = MortalEngine(tiny_model)
    (mailbox,) = mortal.launch(request)
    mortal.step(heard=False)  # computed, and lost
    mortal.kill()
    for _ in range(2):
        mortal.token()
        mortal.kill()
    mortal.finish()
    known = [output.prompt_logprobs for output in mailbox.outputs]
    assert [positions is not None and len(positions) for positions in known] == [5, False, False]


def test_times_and_figures_go_on(tiny_model: Path) -> None:
    mortal = MortalEngine(tiny_model)
    (mailbox,) = mortal.launch(((4, 5, 6), greedy(max_tokens=4)))
    mortal.token()
    first = mailbox.outputs[0].times
    mortal.kill()
    stats = mortal.finish()
    last = mailbox.outputs[-1].times
    assert (last.arrival, last.first_scheduled, last.first_token) == (
        first.arrival,
        first.first_scheduled,
        first.first_token,
    )
    assert last.finished > last.first_token > 0
    assert (stats.prompt_tokens, stats.generation_tokens, stats.finished_requests) == (3, 4, 1)


def make_request(params: SamplingParams, *progress: SequenceProgress) -> EngineRequest:
    return EngineRequest("a", (4, 5, 6), params, time.monotonic(), progress=progress)


def run(engine: Engine) -> list[RequestOutput]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def test_a_character_begun_under_another_engine_is_finished(tiny_model: Path) -> None:
    engine = MortalEngine(tiny_model).engine
    begun = SequenceProgress((32, 127), cumulative_logprob=-1.5)  # an A, and the first byte of an é
    params = SamplingParams(temperature=0.0, max_tokens=3, logit_bias={102: 1000.0}, logprobs=0)
    engine.add_request(make_request(params, begun))
    (output,) = run(engine)
    assert (output.text, output.token_ids, output.num_output_tokens) == ("é", [102], 3)
    assert output.logprobs is not None
    assert output.cumulative_logprob == pytest.approx(-1.5 + output.logprobs[0][102].logprob)
    assert output.finish_reason is FinishReason.LENGTH and output.request_finished


def test_only_unfinished_sequences_go_on(tiny_model: Path) -> None:
    engine = MortalEngine(tiny_model).engine
    ended, begun, waiting = (
        SequenceProgress((32,), finished=True),
        SequenceProgress((33, 34)),
        SequenceProgress(),
    )
    engine.add_request(make_request(greedy(n=3, max_tokens=3), ended, begun, waiting))
    outputs = run(engine)
    new = sorted((output.index, output.num_output_tokens) for output in outputs)
    assert new == [(1, 3), (2, 1), (2, 2), (2, 3)]
    assert [output.request_finished for output in outputs] == [False, False, False, True]
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.parametrize(
    ("params", "progress", "words"),
    [
        ({"n": 2}, [SequenceProgress((32,))], "has 1 sequences; the request has 2"),
        ({}, [SequenceProgress((32,), finished=True)], "all sequences are finished"),
        ({"max_tokens": 2}, [SequenceProgress((32, 33))], "2 tokens leave no room for one more: limit 2"),
        (
            {"max_tokens": None},
            [SequenceProgress((32,) * 93)],
            "93 tokens leave no room for one more: limit 93",
        ),
        ({}, [SequenceProgress((258,))], "outside of the vocabulary, 0 to 257"),
    ],
)
def test_progress_that_leads_nowhere_is_refused(
    tiny_model: Path, params: dict[str, Any], progress: list[SequenceProgress], words: str
) -> None:
    engine = MortalEngine(tiny_model).engine
    with pytest.raises(InvalidRequestError, match=words) as caught:
        engine.add_request(make_request(greedy(**params), *progress))
    assert caught.value.field == "progress"
    assert not engine.has_work
