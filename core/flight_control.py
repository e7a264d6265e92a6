"""Which requests in flight are with the engine, and which of them go to the next one when it dies."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pageport.core.errors import EngineDeadError, InvalidRequestError, PageportError
from pageport.core.flight import Flight
from pageport.core.messages import AbortRequest, ToEngine
from pageport.core.request import RequestOutput

logger = logging.getLogger("pageport.client")

# Engines in a row that died with a request before it had got a token from them: one is bad luck.
SUSPICIOUS_DEATHS = 2


class FlightControl:
    """All requests in flight. Each is with the engine, or waits for one.

    After a death all go to the next engine. Requests that got no token from two engines in a row are suspects: one of
    them may be what kills engines. They are tried apart from all others, half of those with the most deaths at a time,
    so that each further death halves their number. A request that gets a token is no suspect any more. One under
    which an engine dies when no other request is there ends with EngineDeadError, and the others are pardoned.

    Args:
        send: takes a message for the engine; what is sent while there is none is lost.
    """

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._serving = False
        self._gone: PageportError | None = None
        self._waiting: dict[str, Flight] = {}
        self._running: dict[str, Flight] = {}

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for an engine."""
        return sum(flight.num_sequences for flight in self._waiting.values())

    # -- what clients want -----------------------------------------------------------------------------------

    def launch(self, flight: Flight) -> None:
        """Bring a request on its way.

        Raises:
            InvalidRequestError: there is one of the same id.
            PageportError: there will be no engine any more.
        """
        if self._gone is not None:
            raise self._gone.with_traceback(None)
        if flight.request_id in self._running or flight.request_id in self._waiting:
            raise InvalidRequestError("request_id", f"{flight.request_id!r} is in flight already")
        self._waiting[flight.request_id] = flight
        self._depart()

    def leave(self, flight: Flight) -> None:
        """Nobody waits for this request any more. That it has ended already is no error."""
        if flight in (self._running.get(flight.request_id), self._waiting.get(flight.request_id)):
            self.abort(flight.request_id)

    def abort(self, request_id: str) -> None:
        """End a request as cancelled. Unknown ids are ignored.

        Where the engine has it, it is in flight until the engine says that it has ended: until then no other request
        may have its id, or it would be given what is still on its way.
        """
        if (flight := self._running.get(request_id)) is not None:
            if not flight.aborted:
                flight.aborted = True
                self._send(AbortRequest(request_id))
        elif (flight := self._waiting.pop(request_id, None)) is not None:
            flight.cancel()

    # -- what the engine says --------------------------------------------------------------------------------

    def engine_ready(self) -> None:
        self._serving = True
        self._depart()

    def outputs_arrived(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            flight = self._running.get(output.request_id)
            if flight is not None:
                flight.deliver(output)
                if output.request_finished:
                    del self._running[output.request_id]
        self._depart()

    def request_refused(self, request_id: str, error: PageportError) -> None:
        flight = self._running.pop(request_id, None)
        if flight is not None:
            flight.mailbox.fail(error)
        self._depart()

    def engine_died(self, reason: str) -> None:
        """All requests wait again, but for those that end here.

        Args:
            reason: how the engine's process ended.
        """
        self._serving = False
        ran = [flight for flight in self._running.values() if not flight.aborted]
        aborted = [flight for flight in self._running.values() if flight.aborted]
        self._running = {}
        for flight in aborted:
            flight.cancel()
        for flight in ran:
            flight.engine_died()
        if len(ran) == 1 and not aborted and ran[0].fruitless_deaths >= SUSPICIOUS_DEATHS:
            self._convict(ran.pop(), reason)
        elif ran:
            logger.warning("%d requests in flight go on with the next engine", len(ran))
        everyone = sorted([*ran, *self._waiting.values()], key=lambda flight: flight.arrival_time)
        self._waiting = {flight.request_id: flight for flight in everyone}

    def engine_gone(self, error: PageportError) -> None:
        """There will be no engine any more: every request ends with `error`, now and from now on."""
        self._serving = False
        self._gone = error
        for flight in [*self._running.values(), *self._waiting.values()]:
            flight.mailbox.fail(error)
        self._running, self._waiting = {}, {}

    # -- private ---------------------------------------------------------------------------------------------

    def _depart(self) -> None:
        """Hand to the engine what may go."""
        if not self._waiting or not self._serving:
            return
        for flight in self._next():
            self._running[flight.request_id] = self._waiting.pop(flight.request_id)
            self._send(flight.request())

    def _next(self) -> list[Flight]:
        suspects = {
            flight: flight.fruitless_deaths
            for flight in [*self._waiting.values(), *self._running.values()]
            if flight.fruitless_deaths >= SUSPICIOUS_DEATHS
        }
        if not suspects:
            return list(self._waiting.values())
        if any(flight.request_id in self._running for flight in suspects):
            return []  # on trial now
        most = max(suspects.values())
        worst = [flight for flight, deaths in suspects.items() if deaths == most]
        return worst[len(worst) // 2 :]  # the newer half: a request that kills seldom gets old

    def _convict(self, flight: Flight, reason: str) -> None:
        problem = (
            f"{flight.fruitless_deaths} engines in a row died under this request before it got a token, "
            f"the last one with no other request: the engine process {reason}"
        )
        logger.error("request %s is ended: %s", flight.request_id, problem)
        flight.mailbox.fail(EngineDeadError(problem))
        for other in self._waiting.values():
            other.fruitless_deaths = 0
