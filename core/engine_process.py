"""The engine's own process: serves one client over one inherited socket until either side is gone."""

from __future__ import annotations

import logging
import signal
import sys
from multiprocessing.connection import Connection

from pageport.core.engine import Engine
from pageport.core.errors import EngineDeadError, ModelError, PageportError
from pageport.core.messages import (
    AbortRequest,
    EngineFailed,
    EngineReady,
    FromEngine,
    RequestRefused,
    StartEngine,
    StepOutputs,
    StopEngine,
    ToEngine,
)
from pageport.core.request import EngineRequest
from pageport.core.warm_up import warm_up

logger = logging.getLogger("pageport.engine")


class EngineServer:
    """Feeds one engine from one connection. Between steps it takes whatever has arrived; idle, it sleeps."""

    def __init__(self, engine: Engine, connection: Connection) -> None:
        self._engine = engine
        self._connection = connection
        self._stopped = False
        self._failed = False

    def serve(self) -> int:
        """Run until told to stop; returns the exit status.

        A closed connection raises EOFError or OSError: the client is gone.
        """
        self._send(EngineReady(self._engine.info, self._engine.stats()))
        while not self._failed:
            while self._connection.poll(0 if self._engine.has_work else None):
                self._handle(self._connection.recv())
                if self._stopped:
                    return 0
            if self._engine.has_work:
                self._step()
        return 1

    def _handle(self, message: ToEngine) -> None:
        match message:
            case EngineRequest():
                try:
                    self._engine.add_request(message)
                except PageportError as error:
                    self._send(RequestRefused(message.request_id, error))
            case AbortRequest(request_id):
                self._send(StepOutputs(self._engine.abort(request_id), self._engine.stats()))
            case StopEngine():
                self._stopped = True
            case StartEngine():
                raise RuntimeError("the engine is started already")

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:
            # Nobody knows what a broken step leaves behind, so that the process ends. The client has all that was
            # delivered: the next process goes on, and finds out whether one of the requests breaks the step.
            logger.exception("a step failed; the engine ends")
            self._send(EngineFailed(EngineDeadError(f"a step could not be computed: {error!r}")))
            self._failed = True
        else:
            self._send(StepOutputs(outputs, self._engine.stats()))

    def _send(self, message: FromEngine) -> None:
        self._connection.send(message)


def main(file_descriptor: int) -> int:
    """Serve the client at the other end of `file_descriptor`; returns the exit status."""
    logging.basicConfig(format="pageport engine: %(levelname)s %(message)s", level=logging.INFO)
    # A Ctrl-C in the terminal reaches the whole group: the client decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(file_descriptor)
    try:
        start = connection.recv()
        assert isinstance(start, StartEngine)
        try:
            engine = Engine(start.config)
            warm_up(engine)
        except PageportError as error:
            connection.send(EngineFailed(error))
            return 1
        except Exception as error:
            logger.exception("the engine could not be built")
            connection.send(EngineFailed(ModelError(f"the engine could not be built: {error!r}")))
            return 1
        return EngineServer(engine, connection).serve()
    except (EOFError, OSError):
        logger.info("the client has gone")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
