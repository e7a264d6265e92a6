"""Who goes to the next engine when one dies: no process, no model, only what is sent and what is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.core import (
    EngineDeadError,
    EngineRequest,
    FinishReason,
    InvalidRequestError,
    PageportError,
    RequestOutput,
    SamplingParams,
)
from pageport.core.flight import Flight
from pageport.core.flight_control import FlightControl
from pageport.core.messages import AbortRequest, ToEngine


class Rehearsal:
    """Flights named by numbers, and an engine that does what a test says."""

    def __init__(self, count: int = 0, *, n: int = 1) -> None:
        self._sent: list[ToEngine] = []
        self.control = FlightControl(self._sent.append)
        self.flights: dict[int, Flight] = {}
        for number in range(count):
            self.launch(number, n=n)

    def launch(self, number: int, *, n: int = 1) -> None:
        request = EngineRequest(
            str(number), (1, 2), SamplingParams(n=n, max_tokens=50), arrival_time=float(number)
        )
        self.flights[number] = Flight(request)
        self.control.launch(self.flights[number])

    def received(self) -> list[int]:
        """The requests that were sent since the last call; aborts are negative."""
        messages, self._sent[:] = list(self._sent), []
        return [
            -int(message.request_id) if isinstance(message, AbortRequest) else int(message.request_id)
            for message in messages
            if isinstance(message, AbortRequest | EngineRequest)
        ]

    def token(self, *numbers: int, last: bool = False) -> None:
        reason = FinishReason.LENGTH if last else None
        self.control.outputs_arrived(
            [
                RequestOutput(str(number), token_ids=[7], finish_reason=reason, request_finished=last)
                for number in numbers
            ]
        )

    def die(self) -> list[int]:
        """The engine dies and the next one serves; what is sent to it."""
        self.control.engine_died("was killed")
        self.control.engine_ready()
        return self.received()

    def outputs(self, number: int) -> list[RequestOutput]:
        return asyncio.run(asyncio.wait_for(self.flights[number].mailbox.take(), 1.0))

    def error(self, number: int) -> PageportError | None:
        return self.flights[number].mailbox._error

    def failed(self) -> list[int]:
        return [number for number in self.flights if self.error(number) is not None]


def serving(count: int) -> Rehearsal:
    rehearsal = Rehearsal(count)
    rehearsal.control.engine_ready()
    assert rehearsal.received() == list(range(count))
    return rehearsal


def test_requests_wait_for_an_engine_and_go_in_order() -> None:
    rehearsal = Rehearsal(3, n=2)
    assert rehearsal.received() == []
    assert rehearsal.control.num_waiting == 6
    rehearsal.control.engine_ready()
    assert rehearsal.received() == [0, 1, 2]
    assert rehearsal.control.num_waiting == 0
    rehearsal.launch(3)
    assert rehearsal.received() == [3]


def test_after_a_death_all_go_on_oldest_first_and_the_ended_do_not() -> None:
    rehearsal = serving(4)
    rehearsal.token(1, last=True)
    rehearsal.token(3)
    rehearsal.control.engine_died("was killed")
    rehearsal.launch(4)
    assert rehearsal.received() == []
    rehearsal.control.engine_ready()
    assert rehearsal.received() == [0, 2, 3, 4]
    assert rehearsal.failed() == []


def test_what_is_sent_again_says_how_far_it_came() -> None:
    rehearsal = serving(1)
    assert rehearsal.flights[0].request().progress == ()
    rehearsal.token(0, 0)
    (progress,) = rehearsal.flights[0].request().progress
    assert (progress.token_ids, progress.finished) == ((7, 7), False)


def test_deaths_between_tokens_end_nobody() -> None:
    rehearsal = serving(3)
    for _ in range(10):
        rehearsal.token(0, 1, 2)
        assert rehearsal.die() == [0, 1, 2]
    rehearsal.die()
    rehearsal.token(0, 1, 2)
    rehearsal.die()
    assert rehearsal.failed() == []


def test_a_request_under_which_two_engines_in_a_row_die_alone_ends_with_an_error() -> None:
    rehearsal = serving(1)
    rehearsal.token(0)
    assert rehearsal.die() == [0]
    assert rehearsal.die() == [0]
    assert rehearsal.die() == []
    error = rehearsal.error(0)
    assert isinstance(error, EngineDeadError)
    assert str(error) == (
        "2 engines in a row died under this request before it got a token, the last one with no other request: "
        "the engine process was killed"
    )
    rehearsal.launch(1)
    assert rehearsal.received() == [1]


def test_suspects_are_tried_apart_and_the_others_wait() -> None:
    rehearsal = serving(5)
    rehearsal.token(0)
    assert rehearsal.die() == [0, 1, 2, 3, 4]
    rehearsal.token(0, 1)
    assert rehearsal.die() == [3, 4]  # two deaths without a token: 2, 3 and 4, and these are the newer half
    rehearsal.launch(5)
    rehearsal.token(3)
    assert rehearsal.received() == []
    rehearsal.token(4)
    assert rehearsal.received() == [2]
    rehearsal.token(2)
    assert rehearsal.received() == [0, 1, 5]
    assert rehearsal.failed() == []


def test_a_suspect_that_leaves_does_not_hold_up_the_others() -> None:
    rehearsal = serving(2)
    rehearsal.die()
    assert rehearsal.die() == [1]
    rehearsal.control.leave(rehearsal.flights[1])
    assert rehearsal.received() == [-1]
    rehearsal.control.outputs_arrived([RequestOutput("1", request_finished=True)])
    assert rehearsal.received() == [0]
    rehearsal = serving(2)
    rehearsal.die()
    rehearsal.die()
    rehearsal.token(1)
    assert rehearsal.received() == [0]
    rehearsal.launch(2)
    rehearsal.control.request_refused("0", InvalidRequestError("prompt", "is odd"))
    assert rehearsal.received() == [2]


@given(
    count=st.integers(1, 40),
    poisons=st.sets(st.integers(0, 39), max_size=3),
    newcomers=st.lists(st.integers(0, 20), max_size=5),
)
@settings(deadline=None, max_examples=200)
def test_only_what_kills_engines_is_ended(count: int, poisons: set[int], newcomers: list[int]) -> None:
    """Engines that die of certain requests before anyone gets a token; each step brings everyone else one."""
    rehearsal = serving(count)
    poisons = {number for number in poisons if number < count + len(newcomers)}
    present = set(range(count))
    done: set[int] = set()
    arrivals = dict(enumerate(newcomers, start=count))
    for step in range(400):
        if present & poisons:
            present = set(rehearsal.die())
        else:
            rehearsal.token(*present, last=True)
            done |= present
            present = set(rehearsal.received())
        for number in [number for number, when in arrivals.items() if when <= step]:
            del arrivals[number]
            rehearsal.launch(number)
        present |= set(rehearsal.received())
        if not present and not arrivals:
            break
    assert set(rehearsal.failed()) == poisons
    assert done == set(range(count + len(newcomers))) - poisons


def test_one_among_32_is_found_within_eight_deaths() -> None:
    for position in range(32):
        rehearsal = serving(32)
        present: Iterable[int] = range(32)
        deaths = 0
        while not rehearsal.failed():
            if position in present:
                present = rehearsal.die()
                deaths += 1
            else:
                rehearsal.token(*present)
                present = [*present, *rehearsal.received()]
        assert rehearsal.failed() == [position]
        assert deaths <= 8
        assert set(present) == set(range(32)) - {position}, "the others are pardoned"


def test_abort_is_the_engines_as_long_as_there_is_one() -> None:
    rehearsal = serving(2)
    rehearsal.token(1)
    rehearsal.control.abort("1")
    rehearsal.control.abort("1")
    rehearsal.control.abort("unknown")
    assert rehearsal.received() == [-1]
    assert rehearsal.die() == [0], "it ends here, where the engine did not live to say so"
    (whole,) = rehearsal.outputs(1)
    assert (whole.token_ids, whole.finish_reason, whole.request_finished) == (
        [7],
        FinishReason.CANCELLED,
        True,
    )
    assert whole.num_output_tokens == 1


def test_a_request_that_waits_is_aborted_at_once() -> None:
    rehearsal = Rehearsal(1, n=2)
    rehearsal.control.abort("0")
    first, last = rehearsal.outputs(0)
    assert (first.index, first.finish_reason, first.request_finished) == (0, FinishReason.CANCELLED, False)
    assert (last.index, last.finish_reason, last.request_finished) == (1, FinishReason.CANCELLED, True)
    assert (last.num_prompt_tokens, last.num_output_tokens) == (2, 0)
    rehearsal.control.engine_ready()
    assert rehearsal.received() == []


def test_an_id_is_free_when_its_last_output_has_come() -> None:
    rehearsal = serving(1)
    rehearsal.control.leave(rehearsal.flights[0])
    with pytest.raises(InvalidRequestError, match="'0' is in flight already"):
        rehearsal.launch(0)
    rehearsal.control.outputs_arrived([RequestOutput("0", request_finished=True)])
    old = rehearsal.flights[0]
    rehearsal.received()
    rehearsal.launch(0)
    rehearsal.control.leave(old)
    assert rehearsal.received() == [0], "the one before is no business of this one"


def test_when_there_is_no_engine_any_more_everyone_hears_why() -> None:
    rehearsal = serving(2)
    rehearsal.control.engine_died("was killed")
    rehearsal.launch(2)
    rehearsal.control.engine_gone(EngineDeadError("no more"))
    assert rehearsal.failed() == [0, 1, 2]
    with pytest.raises(EngineDeadError, match="no more"):
        rehearsal.launch(3)
