"""One request in flight, as its client remembers it: enough to go on under another engine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pageport.core.mailbox import Mailbox
from pageport.core.request import EngineRequest, FinishReason, RequestOutput, RequestTimes, SequenceProgress


@dataclass(slots=True)
class _Delivered:
    """What has arrived of one sequence."""

    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finished: bool = False


class Flight:
    """What was asked, what has been delivered, and how engines died under it.

    Attributes:
        mailbox: where the outputs go; it stays open from the first engine to the last.
        aborted: the engine was told to end the request.
        fruitless_deaths: engines in a row that had the request, and died before it got a token from them.
    """

    def __init__(self, request: EngineRequest) -> None:
        self.mailbox = Mailbox()
        self.aborted = False
        self.fruitless_deaths = 0
        self._request = request
        self._sequences = [_Delivered() for _ in range(request.sampling.n)]
        self._times = RequestTimes(arrival=request.arrival_time)
        self._got_token = False  # from the engine that has the request now

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    @property
    def arrival_time(self) -> float:
        return self._request.arrival_time

    def request(self) -> EngineRequest:
        """What to send to an engine: the request, and how far it has come."""
        if not any(sequence.token_ids for sequence in self._sequences):
            return self._request
        progress = tuple(
            SequenceProgress(tuple(sequence.token_ids), sequence.cumulative_logprob, sequence.finished)
            for sequence in self._sequences
        )
        return replace(self._request, progress=progress, earlier_times=self._times)

    def deliver(self, output: RequestOutput) -> None:
        """Note what an output adds, and put it into the mailbox."""
        sequence = self._sequences[output.index]
        sequence.token_ids += output.token_ids
        sequence.cumulative_logprob = output.cumulative_logprob
        sequence.finished = output.finish_reason is not None
        self._times = output.times
        if output.token_ids:
            self._got_token = True
            self.fruitless_deaths = 0
        self.mailbox.put(output)

    def engine_died(self) -> None:
        """The engine that had the request is gone."""
        if not self._got_token:
            self.fruitless_deaths += 1
        self._got_token = False

    def cancel(self) -> None:
        """End the request without an engine. Text that the engine held back is gone with it."""
        unfinished = [index for index, sequence in enumerate(self._sequences) if not sequence.finished]
        for index in unfinished:
            sequence = self._sequences[index]
            self.mailbox.put(
                RequestOutput(
                    self.request_id,
                    index,
                    cumulative_logprob=sequence.cumulative_logprob,
                    finish_reason=FinishReason.CANCELLED,
                    num_prompt_tokens=len(self._request.prompt_token_ids),
                    num_output_tokens=len(sequence.token_ids),
                    request_finished=index == unfinished[-1],
                    times=self._times,
                )
            )
