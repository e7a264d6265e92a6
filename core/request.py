"""What travels between a client of the engine and the engine: a request in, outputs back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pageport.core.sampling_params import SamplingParams


class FinishReason(enum.StrEnum):
    """Why a sequence ended. Each sequence ends in exactly one of these."""

    STOP = "stop"  # end-of-sequence token, stop token or stop string
    LENGTH = "length"  # max_tokens, or the end of the context
    CANCELLED = "abort"  # the client asked, or went away
    ERROR = "error"


class ServiceClass(enum.StrEnum):
    """Realtime has latency targets; batch fills what is left."""

    REALTIME = "realtime"
    BATCH = "batch"


@dataclass(slots=True)
class RequestTimes:
    """When things happened to a request, in seconds of `time.monotonic`; 0: not yet."""

    arrival: float = 0.0
    first_scheduled: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0

    def __reduce__(self) -> tuple[type[RequestTimes], tuple[float, float, float, float]]:
        """See `RequestOutput`."""
        return RequestTimes, (self.arrival, self.first_scheduled, self.first_token, self.finished)


@dataclass(frozen=True, slots=True)
class SequenceProgress:
    """How far one sequence of a request had come under an engine that is gone."""

    token_ids: tuple[int, ...] = ()
    cumulative_logprob: float = 0.0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One prompt with its parameters, as the engine receives it.

    Attributes:
        request_id: unique among the requests in flight.
        prompt_token_ids: at least one id, each below the vocabulary size.
        arrival_time: seconds, `time.monotonic` of this machine.
        seed: resolved; sequence `i` of the request draws with `seed + i`.
        progress: empty for a new request; else one entry a sequence, not all of them finished, and the request goes on
            from there: outputs hold only what comes after.
        earlier_times: with `progress`, what had happened to the request by then.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival_time: float
    seed: int = 0
    service_class: ServiceClass = ServiceClass.REALTIME
    progress: tuple[SequenceProgress, ...] = ()
    earlier_times: RequestTimes | None = None


class Logprob(NamedTuple):
    """The log-probability of one candidate token; see `LogprobsMode`."""

    logprob: float
    rank: int  # 1: the most likely token
    decoded_token: str


# One position: token id to its log-probability. The chosen token comes first.
PositionLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class RequestOutput:
    """What one step (or several merged ones) added to one sequence of a request.

    All of `text`, `token_ids`, `token_texts` and `logprobs` are deltas. Text is held back while it could still
    become part of a stop string or of an unfinished character, so a step may add tokens but no text.

    Attributes:
        index: which of the request's `n` sequences.
        token_texts: where asked for, the text that each token added, one entry a token, held back or not: "" where a
            token only began a character. Special tokens, the end token among them, have a text here where they are
            not skipped.
        finish_reason: None while the sequence goes on; the request ends with its last sequence.
        stop_reason: the stop string or stop token id that ended it; None for end-of-sequence.
        prompt_logprobs: only on the first output of sequence 0, one entry a prompt token; the first is None.
        request_finished: this is the last output of the whole request.
    """

    request_id: str
    index: int = 0
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    token_texts: list[str] | None = None
    logprobs: list[PositionLogprobs] | None = None
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    request_finished: bool = False
    error: str | None = None
    times: RequestTimes = field(default_factory=RequestTimes)

    def __reduce__(self) -> tuple[type[RequestOutput], tuple[Any, ...]]:
        """Positional: half the time of a dataclass's own pickling, and every token of every stream is pickled once."""
        return RequestOutput, (
            self.request_id, self.index, self.text, self.token_ids, self.token_texts, self.logprobs,
            self.cumulative_logprob, self.finish_reason, self.stop_reason, self.prompt_logprobs,
            self.num_prompt_tokens, self.num_output_tokens, self.request_finished, self.error, self.times,
        )  # fmt: skip

    def merge(self, later: RequestOutput) -> None:
        """Append a later delta of the same sequence to this one."""
        self.text += later.text
        self.token_ids += later.token_ids
        if later.token_texts is not None:
            self.token_texts = (self.token_texts or []) + later.token_texts
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs
        self.cumulative_logprob = later.cumulative_logprob
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason
        self.num_output_tokens = later.num_output_tokens
        self.request_finished = later.request_finished
        self.error = later.error
        self.times = later.times
