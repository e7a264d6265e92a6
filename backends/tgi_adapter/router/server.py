"""The router as a process: an engine is started, HTTP is served until a signal, and everything ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Generator
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp, Receive, Scope, Send

from pageport.backends.tgi_adapter.router.app import create_app
from pageport.backends.tgi_adapter.router.logs import configure_logging
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.core import ConfigError, EngineClientProtocol, load_tokenizer

# TGI's router never closes an idle connection; a client's pool shall not meet one that was closed a moment ago.
_IDLE_CONNECTION_S = 3600

_log = logging.getLogger(__name__)


def serve(settings: RouterSettings, engine: EngineClientProtocol, model_folder: Path) -> int:
    """Serve until SIGTERM or SIGINT; the exit status of the process.

    After a signal no connection is accepted; running requests go on for `graceful_termination_timeout` seconds at
    most. A second SIGINT ends them at once. The engine is stopped last, whatever happened.

    Raises:
        ConfigError, ModelError, EngineDeadError: it could not be started.
    """
    configure_logging(settings.log_level, json_output=settings.json_output)
    return uvloop.run(_serve(settings, engine, model_folder))


async def _serve(settings: RouterSettings, engine: EngineClientProtocol, model_folder: Path) -> int:
    listener = _bind(settings.hostname, settings.port)
    with contextlib.closing(listener):
        try:
            with _cancelled_by_signals():
                tokenizer = await asyncio.to_thread(load_tokenizer, model_folder)
                await engine.start()
            app = create_app(settings, engine, tokenizer, model_folder)
            return await _serve_http(settings, engine, app, listener)
        except asyncio.CancelledError:
            _log.info("stopped before the engine had started")
            return 0
        finally:
            await engine.close()


async def _serve_http(
    settings: RouterSettings, engine: EngineClientProtocol, app: ASGIApp, listener: socket.socket
) -> int:
    server = _Server(_config(settings, _cut_off(app)))
    dead = asyncio.create_task(engine.wait_dead())
    dead.add_done_callback(lambda task: server.stop())
    _log.info("listening on %s:%d", *listener.getsockname()[:2])
    try:
        await server.serve(sockets=[listener])
        if dead.done():
            _log.error("the engine is gone: %s", dead.result())
            return 1
        return 0
    finally:
        dead.cancel()


def _config(settings: RouterSettings, app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_CONNECTION_S,
        timeout_graceful_shutdown=max(1, round(settings.graceful_termination_timeout)),
    )


def _cut_off(app: ASGIApp) -> ASGIApp:
    """The same, with one line in the log for a request that outlasts the time after a signal."""

    async def outermost(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            _log.warning("a request was cut off: graceful_termination_timeout is over")

    return outermost


class _Server(uvicorn.Server):
    """Ends with an exit status of its own choice: uvicorn would raise the signal again when all is done."""

    def stop(self) -> None:
        """As a signal does."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


@contextlib.contextmanager
def _cancelled_by_signals() -> Generator[None, None, None]:
    """A signal cancels the block."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _bind(hostname: str, port: int) -> socket.socket:
    """The port is taken before the engine loads, and answers once it has.

    Raises:
        ConfigError: the address cannot be had.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in hostname else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((hostname, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"hostname, port: {hostname}:{port} cannot be bound: {error}") from error
    return listener
