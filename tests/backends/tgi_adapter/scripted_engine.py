"""An engine without a model that plays recorded tokens.

Token k of an answer has the log-probability -0.25 (k + 1), token j of a prompt -0.125 j (the first has none); the
alternatives to a token are the ids that follow it, each 0.5 less likely. An answer ends by its length, by the
end-of-sequence token or where its text ends with a stop string, checked in that order.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from pageport.core import (
    EngineInfo,
    EngineStats,
    FinishReason,
    Logprob,
    PageportError,
    PositionLogprobs,
    RequestOutput,
    RequestTimes,
    SamplingParams,
    ServiceClass,
)

DEFAULT_TEXT = " Deep learning is a part of machine learning."
EOS = 2
_BLOCK_SIZE = 16
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Script:
    """What the engine plays, and where it fails.

    Attributes:
        text: tokenised, then the end-of-sequence token; with `eos` false the text is repeated without end.
        tokens: the ids of each step, instead of a text. Several in one step come in one output.
        prefill_error: the request fails before its first token.
        decode_error, decode_error_at: the request fails in this step (0 is the first token's).
        liveness_error: every request of one token fails.
        health_error: the engine is not healthy.
        no_tokens: the stream ends without a token and without a reason.
        silent_at: the token of this step is lost.
        stall_at: in this step the engine falls silent for good.
        prefill_s: seconds before the first token.
        pad_text: bytes that the recorded shard added to its message; there is no such message here.
    """

    text: str = DEFAULT_TEXT
    eos: bool = True
    tokens: tuple[tuple[int, ...], ...] | None = None
    prefill_error: str | None = None
    decode_error: str | None = None
    decode_error_at: int = 2
    liveness_error: str | None = None
    health_error: str | None = None
    no_tokens: bool = False
    silent_at: int | None = None
    stall_at: int | None = None
    prefill_s: float = 0.0
    pad_text: int = 0

    @classmethod
    def parse(cls, values: Mapping[str, Any] | None) -> Script:
        """From a line of the recorded cases."""
        values = dict(values or {})
        if "tokens" in values:
            values["tokens"] = tuple(tuple(step) for step in values["tokens"])
        return cls(**values)

    def steps(self, tokenizer: Tokenizer) -> Iterator[tuple[int, ...]]:
        """The ids of each step."""
        if self.tokens is not None:
            return iter(self.tokens)
        ids = tokenizer.encode(self.text, add_special_tokens=False).ids
        single = ((token,) for token in ids)
        return itertools.chain(single, [(EOS,)]) if self.eos else itertools.cycle(list(single))


@dataclass(eq=False)
class Submitted:
    """One request as the engine got it; `prompt` is the text of its tokens."""

    request_id: str
    prompt: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    service_class: ServiceClass
    aborted: bool = False


@dataclass
class _Answer:
    """One request's way through its script."""

    tokenizer: Tokenizer
    request: Submitted
    script: Script
    times: RequestTimes
    generated: int = 0
    text: str = ""
    pending: list[int] = field(default_factory=list)
    shown: int = 0

    def output(self, step: Iterable[int]) -> RequestOutput:
        """What a step adds, cut where the answer ends."""
        output = RequestOutput(
            self.request.request_id,
            token_texts=[],
            logprobs=[],
            num_prompt_tokens=len(self.request.prompt_ids),
            times=self.times,
        )
        if self.generated == 0:
            self.times.first_token = time.monotonic()
            output.prompt_logprobs = self._prompt_logprobs()
        for token in step:
            text = self._piece(token)
            output.token_ids.append(token)
            output.token_texts = [*(output.token_texts or []), text]
            output.logprobs = [*(output.logprobs or []), self._position(token)]
            output.text += text
            self.generated += 1
            self.text += text
            if self._ends(token, output):
                break
        output.num_output_tokens = self.generated
        output.cumulative_logprob = -0.125 * self.generated * (self.generated + 1)
        return output

    def failed(self, error: str) -> RequestOutput:
        return RequestOutput(
            self.request.request_id,
            finish_reason=FinishReason.ERROR,
            request_finished=True,
            error=error,
            times=self.times,
        )

    def cancelled(self) -> RequestOutput:
        return RequestOutput(
            self.request.request_id,
            finish_reason=FinishReason.CANCELLED,
            request_finished=True,
            times=self.times,
        )

    def _ends(self, token: int, output: RequestOutput) -> bool:
        sampling = self.request.sampling
        stop = next((stop for stop in sampling.stop if self.text.endswith(stop)), None)
        if self.generated == sampling.max_tokens:
            output.finish_reason = FinishReason.LENGTH
        elif token == EOS and not sampling.ignore_eos:
            output.finish_reason = FinishReason.STOP
        elif stop is not None:
            output.finish_reason, output.stop_reason = FinishReason.STOP, stop
        output.request_finished = output.finish_reason is not None
        if output.request_finished:
            self.times.finished = time.monotonic()
        return output.request_finished

    def _piece(self, token: int) -> str:
        """The text a token adds; the blank before an unfinished character is lost, as in the recordings."""
        self.pending.append(token)
        text = self.tokenizer.decode(self.pending, skip_special_tokens=False)
        if text.endswith(_UNFINISHED):
            self.shown = len(text.rstrip(_UNFINISHED))
            return ""
        piece = text[self.shown :]
        self.pending.clear()
        self.shown = 0
        return piece

    def _position(self, token: int) -> PositionLogprobs:
        logprob = -0.25 * (self.generated + 1)
        count = max(1, self.request.sampling.logprobs or 0)
        return {
            token + rank: Logprob(logprob - 0.5 * rank, rank + 1, self._spell(token + rank))
            for rank in range(count)
        }

    def _prompt_logprobs(self) -> list[PositionLogprobs | None] | None:
        if self.request.sampling.prompt_logprobs is None:
            return None
        entries: list[PositionLogprobs | None] = [None]
        for index, token in enumerate(self.request.prompt_ids[1:], 1):
            entries.append({token: Logprob(-0.125 * index, 1, self._spell(token))})
        return entries

    def _spell(self, token: int) -> str:
        return self.tokenizer.decode([token], skip_special_tokens=False)


class ScriptedEngine:
    """Same face as `EngineClient`.

    Attributes:
        submitted: every request so far, in order of arrival.
        step_s: seconds between two tokens; all requests step together.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_model_len: int = 8192, step_s: float = 0.0) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self.step_s = step_s
        self.submitted: list[Submitted] = []
        self._default = Script()
        self._queue: deque[Script] = deque()
        self._running: dict[str, asyncio.Event] = {}
        self._numbers = itertools.count()
        self._finished = self._prompt_tokens = self._generation_tokens = 0
        self._dead = asyncio.Event()
        self._why_dead = PageportError("the engine is gone")
        self.closed = False

    # -- what tests say ------------------------------------------------------------------------------------

    def play(self, script: Script | None = None) -> None:
        """For all requests from now on; None is the default script."""
        self._default = script or Script()

    def play_in_turn(self, scripts: Iterable[Script]) -> None:
        """One script for each of the next requests, in order of arrival."""
        self._queue.extend(scripts)

    @contextmanager
    def playing(self, script: Script | None) -> Iterator[None]:
        before, self._default = self._default, script or Script()
        try:
            yield
        finally:
            self._default = before

    @property
    def num_running(self) -> int:
        return len(self._running)

    def die(self, why: PageportError) -> None:
        """The engine is gone for good."""
        self._why_dead = why
        self._dead.set()

    # -- EngineClientProtocol ------------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            max_model_len=self._max_model_len,
            kv_token_capacity=16384,
            vocab_size=self._tokenizer.get_vocab_size(),
            max_num_seqs=64,
            dtype="float32",
            device="cpu",
            kernels="cpu",
            eos_token_ids=(EOS,),
        )

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
        ids = self._tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        request = Submitted(
            request_id or f"scripted-{next(self._numbers)}", text, tuple(ids), sampling, service_class
        )
        script = self._queue.popleft() if self._queue else self._default
        self.submitted.append(request)
        aborted = self._running[request.request_id] = asyncio.Event()
        self._prompt_tokens += len(ids)
        finished = False
        try:
            now = time.monotonic()
            answer = _Answer(self._tokenizer, request, script, RequestTimes(now, now))
            async for output in self._outputs(answer, aborted):
                self._generation_tokens += len(output.token_ids)
                finished = finished or output.request_finished
                yield output
            finished = finished or script.no_tokens
        finally:
            request.aborted = not finished or aborted.is_set()
            del self._running[request.request_id]
            self._finished += 1

    async def _outputs(self, answer: _Answer, aborted: asyncio.Event) -> AsyncIterator[RequestOutput]:
        script = answer.script
        if script.prefill_s:
            await asyncio.sleep(script.prefill_s)
        liveness = answer.request.sampling.max_tokens == 1
        error = (script.liveness_error if liveness else None) or script.prefill_error
        if error is not None:
            yield answer.failed(error)
            return
        if script.no_tokens:
            return
        for number, step in enumerate(script.steps(self._tokenizer)):
            await self._pause()
            if aborted.is_set():
                yield answer.cancelled()
                return
            if number == script.silent_at:
                continue
            if number == script.stall_at:
                await aborted.wait()
                yield answer.cancelled()
                return
            if script.decode_error is not None and number == script.decode_error_at:
                yield answer.failed(script.decode_error)
                return
            output = answer.output(step)
            yield output
            if output.request_finished:
                return

    async def _pause(self) -> None:
        """To the next step, which is the same for all requests."""
        step = self.step_s
        await asyncio.sleep(step - time.monotonic() % step if step else 0.0)

    async def abort(self, request_id: str) -> None:
        if request_id in self._running:
            self._running[request_id].set()

    def health(self) -> bool:
        return not self.closed and not self._dead.is_set() and self._default.health_error is None

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=len(self._running),
            kv_blocks_total=16384 // _BLOCK_SIZE,
            kv_blocks_used=len(self._running),
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            finished_requests=self._finished,
        )

    async def wait_dead(self) -> PageportError:
        await self._dead.wait()
        return self._why_dead

    async def close(self) -> None:
        self.closed = True
