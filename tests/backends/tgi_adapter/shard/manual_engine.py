"""An engine that does what a test says, when it says it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pageport.core import (
    EngineInfo,
    EngineStats,
    FinishReason,
    Logprob,
    PageportError,
    RequestOutput,
    SamplingParams,
    ServiceClass,
)

END = 2
FIRST_BYTE = 3


def byte_tokenizer() -> Tokenizer:
    """One token a byte, from 3 on; before them `<pad>`, `<start>` and `<end>`. No torch is needed for it."""
    special = ["<pad>", "<start>", "<end>"]
    names = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: index for index, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    return tokenizer


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something holds; fails if it never does."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


@dataclass(eq=False)
class Submission:
    """One request as the engine got it. What the test says about it is what its stream brings."""

    prompt_ids: list[int]
    sampling: SamplingParams
    tokenizer: Tokenizer
    aborted: bool = False
    generated: int = 0
    outputs: asyncio.Queue[RequestOutput | Exception] = field(default_factory=asyncio.Queue)

    @property
    def prompt(self) -> str:
        return self.tokenizer.decode(self.prompt_ids, skip_special_tokens=False)

    def emit(self, text: str = "", *, end: FinishReason | None = None, stop: str | None = None) -> None:
        """One token a byte; token k has the log-probability -k/4, from 1 on. An end without text is the end token."""
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids or [END]
        output = RequestOutput("", token_texts=[], logprobs=[], finish_reason=end, stop_reason=stop)
        output.request_finished = end is not None
        if self.generated == 0 and self.sampling.prompt_logprobs is not None:
            known = [{token: Logprob(-1.0, 1, "")} for token in self.prompt_ids[1:]]
            output.prompt_logprobs = [None, *known]
        for token in ids:
            self.generated += 1
            piece = self.tokenizer.decode([token], skip_special_tokens=False)
            width = max(1, self.sampling.logprobs or 0)
            position = {
                token + rank: Logprob(-0.25 * self.generated - rank, rank + 1, piece) for rank in range(width)
            }
            output.token_ids.append(token)
            output.token_texts = [*(output.token_texts or []), piece]
            output.logprobs = [*(output.logprobs or []), position]
        self.outputs.put_nowait(output)

    def emit_nothing(self, end: FinishReason | None = None, error: str | None = None) -> None:
        self.outputs.put_nowait(
            RequestOutput(
                "",
                token_texts=[],
                logprobs=[],
                finish_reason=end,
                request_finished=end is not None,
                error=error,
            )
        )

    def fail(self, error: Exception) -> None:
        self.outputs.put_nowait(error)


class ManualEngine:
    """Same face as `EngineClient`."""

    def __init__(self, tokenizer: Tokenizer, info: EngineInfo | None = None) -> None:
        self.tokenizer = tokenizer
        self.submissions: list[Submission] = []
        self.healthy = True
        self.info = info or EngineInfo(
            max_model_len=2048,
            kv_token_capacity=16384,
            vocab_size=tokenizer.get_vocab_size(),
            max_num_seqs=64,
            dtype="bfloat16",
            device="cuda:0",
            kernels="gpu",
            eos_token_ids=(END,),
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
        assert isinstance(prompt, list)
        submission = Submission(prompt, sampling, self.tokenizer)
        self.submissions.append(submission)
        finished = False
        try:
            while not finished:
                output = await submission.outputs.get()
                if isinstance(output, Exception):
                    finished = True
                    raise output
                finished = output.request_finished
                yield output
        finally:
            submission.aborted = not finished

    async def submitted(self, count: int) -> list[Submission]:
        """The requests so far, once there are so many."""
        await until(lambda: len(self.submissions) >= count)
        return self.submissions

    async def abort(self, request_id: str) -> None: ...

    def health(self) -> bool:
        return self.healthy

    def stats(self) -> EngineStats:
        return EngineStats()

    async def wait_dead(self) -> PageportError:
        raise NotImplementedError

    async def close(self) -> None: ...
