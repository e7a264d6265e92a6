"""One request on its way through the engine, while the router asks for it now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

from pageport.backends.tgi_adapter.generation import (
    GeneratedText,
    GenerationFailedError,
    GenerationReader,
    StopReason,
    Token,
    TokenEvent,
    TokenSpeller,
)
from pageport.backends.tgi_adapter.shard.incoming import NewRequest
from pageport.backends.tgi_adapter.shard.message_size import fitting
from pageport.core import EngineClientProtocol, InvalidRequestError, PageportError, RequestOutput

logger = logging.getLogger("pageport.tgi")

# Of several answers to one request the router takes the likeliest: never one that is an error.
_ERROR_LOGPROB = -9999.0


class RequestFlow:
    """Reads one request's stream as it comes; the engine runs on while the router is busy.

    Attributes:
        reserved_tokens: what the router counts for it: its prompt and the longest answer.
        problem: why it ended without an answer.
        is_clients_fault: whether the problem lies in the request.

    Args:
        on_news: called when there is something new to take.
    """

    def __init__(self, request: NewRequest, speller: TokenSpeller, on_news: Callable[[], None]) -> None:
        self._request = request
        self._on_news = on_news
        self._reader = GenerationReader(speller, request.prompt_ids, request.parameters)
        self._events: list[TokenEvent] = []
        self._answered = False
        self._task: asyncio.Task[None] | None = None
        self.problem = request.problem
        self.is_clients_fault = request.problem is not None
        self.reserved_tokens = len(request.prompt_ids) + request.parameters.max_new_tokens

    def start(self, engine: EngineClientProtocol) -> asyncio.Task[None] | None:
        """Hand the request to the engine; the task that then reads its stream."""
        if self.problem is None:
            self._task = asyncio.create_task(self._read(engine))
        return self._task

    def cancel(self) -> None:
        """Nobody wants the rest; the engine forgets the request."""
        if self._task is not None:
            self._task.cancel()

    @property
    def current_tokens(self) -> int:
        """What has to be computed before it brings its next token."""
        return 1 if self._reader.num_generated else len(self._request.prompt_ids)

    @property
    def has_news(self) -> bool:
        return bool(self._events) or self.problem is not None

    @property
    def has_only_failed(self) -> bool:
        """Whether a problem is all that is new."""
        return self.problem is not None and not self._events

    @property
    def is_over(self) -> bool:
        """Whether everything that it will ever bring has been taken."""
        return self._answered and not self._events

    def take(self, room: int) -> tuple[list[TokenEvent], int]:
        """What has come since the last time, as far as it fits into so many bytes, and the bytes it takes."""
        taken, size = fitting(self._request.id, self._events, room)
        del self._events[: len(taken)]
        return taken, size

    def take_problem(self, end_token: int) -> list[TokenEvent]:
        """The problem as the last piece of the answer's text.

        A shard's answer has no place for one request's error, and an error of the whole call would end the requests
        that share it. Any reason but LENGTH is right for the end: after that one the router asks for the rest.
        """
        assert self.has_only_failed
        text = f"[error] {self.problem}"
        so_far = self._reader.text() if self._reader.num_generated else ""
        whole = GeneratedText(
            so_far + text, self._reader.num_generated + 1, StopReason.STOP_SEQUENCE, seed=None
        )
        self.problem = None
        self._answered = True
        return [TokenEvent(Token(end_token, text, _ERROR_LOGPROB, special=False), generated=whole)]

    # -- private -------------------------------------------------------------------------------------------

    async def _read(self, engine: EngineClientProtocol) -> None:
        request = self._request
        try:
            outputs = engine.submit(request.prompt_ids, request.parameters.to_sampling_params())
            async with aclosing(cast("AsyncGenerator[RequestOutput]", outputs)):
                async for output in outputs:
                    self._add(self._reader.read(output))
            if not self._answered:
                self._fail("the engine ended the request without a reason")
        except InvalidRequestError as error:
            self._fail(str(error), clients_fault=True)
        except (PageportError, GenerationFailedError) as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("request %d failed", request.id)
            self._fail(f"internal error: {error!r}")

    def _add(self, events: list[TokenEvent]) -> None:
        if events:
            self._events += events
            self._answered = events[-1].generated is not None
            self._on_news()

    def _fail(self, problem: str, *, clients_fault: bool = False) -> None:
        self.problem = problem
        self.is_clients_fault = clients_fault
        self._on_news()
