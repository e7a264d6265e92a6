"""An engine without a model, loaded by the real stub through the setting `engine_client`.

It answers with scripted words, one token each, and does what the prompt says when that starts with `!`:

    !die          engines died under this request until it was given up
    !bug          an exception that nobody expects
    !fail         the engine ends the request with an error
    !silent       no token ever comes, until the request is aborted or its time is over
    !tick MS      a token every MS milliseconds, for all such requests at once, as an engine's steps give them
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator

from pageport.core import (
    EngineConfig,
    EngineDeadError,
    EngineStats,
    FinishReason,
    InvalidRequestError,
    Logprob,
    PageportError,
    RequestOutput,
    RequestTimeoutError,
    RequestTimes,
    SamplingParams,
    ServiceClass,
)

MAX_MODEL_LEN = 2048
BLOCK_SIZE = 16


class FakeEngineClient:
    """Same face as `EngineClient`; one block for each 16 tokens, so that leaks would show."""

    def __init__(self, config: EngineConfig) -> None:
        self._total = config.max_num_seqs * MAX_MODEL_LEN // BLOCK_SIZE
        self._blocks: dict[str, int] = {}
        self._numbers = itertools.count()
        self._prompt_tokens = self._generation_tokens = self._finished = 0
        self._closed = False

    async def start(self) -> None: ...

    async def submit(
        self,
        prompt: str | list[int],
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
        service_class: ServiceClass = ServiceClass.REALTIME,
    ) -> AsyncIterator[RequestOutput]:
        request_id = request_id or f"fake-{next(self._numbers)}"
        num_prompt = len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        max_tokens = MAX_MODEL_LEN - num_prompt if sampling.max_tokens is None else sampling.max_tokens
        if num_prompt + max_tokens > MAX_MODEL_LEN:
            raise InvalidRequestError("max_tokens", f"{max_tokens} exceed max_model_len, {MAX_MODEL_LEN}")
        self._blocks[request_id] = -(-num_prompt // BLOCK_SIZE)
        try:
            async with asyncio.timeout(timeout):
                async for output in self._answer(request_id, prompt, num_prompt, sampling, max_tokens):
                    yield output
        except TimeoutError:
            raise RequestTimeoutError(f"timeout: not finished after {timeout} s") from None
        finally:
            del self._blocks[request_id]
            self._finished += 1

    async def _answer(
        self,
        request_id: str,
        prompt: str | list[int],
        num_prompt: int,
        sampling: SamplingParams,
        max_tokens: int,
    ) -> AsyncIterator[RequestOutput]:
        command, _, rest = (prompt if isinstance(prompt, str) else "").partition(" ")
        pause = float(rest) / 1e3 if command == "!tick" else 0.0
        if command == "!silent":
            await asyncio.Event().wait()
        times = RequestTimes(arrival=time.monotonic(), first_scheduled=time.monotonic())
        self._prompt_tokens += num_prompt
        for number in range(max_tokens):
            if command == "!die" and number == 2:
                raise EngineDeadError("2 engines in a row died under this request")
            if command == "!bug":
                raise ZeroDivisionError("a bug on purpose")
            await asyncio.sleep(pause - time.monotonic() % pause if pause else 0.0)
            times.first_token = times.first_token or time.monotonic()
            self._blocks[request_id] = -(-(num_prompt + (number + 1) * sampling.n) // BLOCK_SIZE)
            for index in range(sampling.n):
                last = number == max_tokens - 1
                yield self._token(request_id, index, number, num_prompt, sampling, last, times)
            if command == "!fail":
                yield RequestOutput(
                    request_id, finish_reason=FinishReason.ERROR, request_finished=True, error="a step failed"
                )

    def _token(
        self,
        request_id: str,
        index: int,
        number: int,
        num_prompt: int,
        sampling: SamplingParams,
        last: bool,
        times: RequestTimes,
    ) -> RequestOutput:
        self._generation_tokens += 1
        finished = last and index == sampling.n - 1
        if finished:
            times.finished = time.monotonic()
        text = word(index, number)
        logprobs = [{number: Logprob(-0.5, 1, text)}] if sampling.logprobs is not None else None
        return RequestOutput(
            request_id,
            index,
            text,
            [number],
            logprobs=logprobs,
            cumulative_logprob=-0.5 * (number + 1) if logprobs else 0.0,
            finish_reason=FinishReason.LENGTH if last else None,
            num_prompt_tokens=num_prompt,
            num_output_tokens=number + 1,
            request_finished=finished,
            times=times,
        )

    async def abort(self, request_id: str) -> None: ...

    def health(self) -> bool:
        return not self._closed

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._blocks),
            kv_blocks_total=self._total,
            kv_blocks_used=sum(self._blocks.values()),
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            finished_requests=self._finished,
        )

    async def wait_dead(self) -> PageportError:
        await asyncio.Event().wait()
        raise AssertionError("this engine never dies")

    async def close(self) -> None:
        self._closed = True


def word(index: int, number: int) -> str:
    """Token `number` of sequence `index`."""
    return f" {chr(ord('a') + index)}{number}"
