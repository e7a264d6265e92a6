"""One request on its way through the engine, while the router asks for it now and then."""

from __future__ import annotations

import asyncio
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
from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.core import EngineClientProtocol, PageportError, RequestOutput


class RequestFlow:
    """Reads one request's stream as it comes; the engine runs on while the router is busy.

    Attributes:
        request_id: the router's.
        prompt_length: tokens.
        reserved_tokens: what the router counts for it: its prompt and the longest answer.
    """

    def __init__(
        self,
        request_id: int,
        prompt_ids: list[int],
        parameters: GenerationParameters,
        speller: TokenSpeller,
        end_token: int,
        on_news: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self.prompt_length = len(prompt_ids)
        self.reserved_tokens = len(prompt_ids) + parameters.max_new_tokens
        self.error: str | None = None
        self._prompt_ids = prompt_ids
        self._parameters = parameters
        self._reader = GenerationReader(speller, prompt_ids, parameters)
        self._events: list[TokenEvent] = []
        self._end_token = end_token
        self._on_news = on_news
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def start(self, engine: EngineClientProtocol) -> None:
        self._task = asyncio.create_task(self._run(engine))

    def cancel(self) -> None:
        """Nobody wants the rest; the engine forgets the request."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()

    @property
    def has_news(self) -> bool:
        return bool(self._events) or self.error is not None

    @property
    def has_failed(self) -> bool:
        """Whether an error is all that is new."""
        return self.error is not None and not self._events

    @property
    def is_over(self) -> bool:
        """Whether everything it will ever bring has been taken."""
        return self._ended and not self.has_news

    @property
    def is_prefilling(self) -> bool:
        return self._reader.num_generated == 0

    def take(self) -> list[TokenEvent]:
        """What has come since the last time, in order.

        A shard's answer has no place for one request's error, and an error of the whole call would end the others too:
        so the error is the last piece of the text.
        """
        events, self._events = self._events, []
        if self.error is not None:
            events.append(self._last_words(self.error))
            self.error = None
        return events

    async def _run(self, engine: EngineClientProtocol) -> None:
        try:
            outputs = engine.submit(self._prompt_ids, self._parameters.to_sampling_params())
            async with aclosing(cast("AsyncGenerator[RequestOutput]", outputs)):
                async for output in outputs:
                    self._events += self._reader.read(output)
                    self._ended = self._ended or output.request_finished
                    if self._events:
                        self._on_news()
        except (PageportError, GenerationFailedError) as error:
            self.error = str(error)
        except Exception as error:
            self.error = f"the request failed: {error!r}"
        if not self._ended:
            self._ended = True
            self.error = self.error or "the engine ended the request without a reason"
        self._on_news()

    def _last_words(self, problem: str) -> TokenEvent:
        text = f"[error] {problem}"
        whole = GeneratedText(
            self._reader.text() + text, self._reader.num_generated + 1, StopReason.EOS_TOKEN, seed=None
        )
        return TokenEvent(Token(self._end_token, text, 0.0, special=False), generated=whole)
