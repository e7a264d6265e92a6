"""What the engine remembers of a request beyond its schedule: sampling state, text, and when to end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tokenizers import Tokenizer

from pageport.core.request import (
    EngineRequest,
    FinishReason,
    Logprob,
    PositionLogprobs,
    RequestOutput,
    RequestTimes,
    SequenceProgress,
)
from pageport.core.sampling import SamplingState, TokenLogprobs
from pageport.core.sequence import Sequence
from pageport.core.text_stream import TextStream


class TokenTexts:
    """Each token's own text, remembered: log-probabilities name the same few tokens again and again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def position(self, values: TokenLogprobs) -> PositionLogprobs:
        """One position's log-probabilities with the tokens spelled out."""
        return {
            token: Logprob(logprob, rank, self._text(token))
            for token, logprob, rank in zip(values.token_ids, values.logprobs, values.ranks, strict=True)
        }

    def _text(self, token: int) -> str:
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return text


@dataclass(slots=True, eq=False)
class RequestProgress:
    """What the sequences of one request have in common."""

    request: EngineRequest
    times: RequestTimes
    unfinished: int
    sequences: list[Sequence] = field(default_factory=list)
    prompt_logprobs: list[PositionLogprobs | None] | None = None

    @classmethod
    def start(cls, request: EngineRequest) -> RequestProgress:
        first_has_begun = bool(request.progress and request.progress[0].token_ids)
        wants_prompt = request.sampling.prompt_logprobs is not None and not first_has_begun
        times = request.earlier_times or RequestTimes(arrival=request.arrival_time)
        return cls(
            request,
            replace(times),
            unfinished=request.sampling.n - sum(sequence.finished for sequence in request.progress),
            prompt_logprobs=[None] if wants_prompt else None,
        )


@dataclass(slots=True, eq=False)
class Generation:
    """One sequence's tokens becoming text, until something ends it."""

    sequence: Sequence
    progress: RequestProgress
    sampling: SamplingState
    text: TextStream
    max_output_tokens: int
    cumulative_logprob: float = 0.0

    def resume(self, progress: SequenceProgress) -> None:
        """Go on from what an engine that is gone has sent of this sequence.

        Its state (text held back, tokens counted, the place in a grammar) follows from the tokens alone, so they are
        accepted once more; what comes of that was sent then.
        """
        for token in progress.token_ids:
            ended = self.accept(token, None).finish_reason
            assert ended is None, "a sequence that has ended does not go on"
        self.cumulative_logprob = progress.cumulative_logprob

    def accept(self, token: int, logprobs: PositionLogprobs | None) -> RequestOutput:
        """Append a sampled token and say what it adds; ends the sequence where it has to."""
        self.sequence.token_ids.append(token)
        self.sampling.output_token_ids.append(token)
        grammar = self.sampling.grammar
        is_allowed = grammar is None or grammar.accept(token)
        output = self.output()
        output.token_ids = [token]
        if logprobs is not None:
            self.cumulative_logprob += logprobs[token].logprob
            output.logprobs = [logprobs]
        output.cumulative_logprob = self.cumulative_logprob
        self._extend_text(output, token)
        if grammar is not None and not is_allowed:
            # Bans, a bias or the model itself left no token that the grammar allows.
            output.finish_reason = FinishReason.ERROR
            output.error = f"grammar: no token can follow the text so far: {grammar.problem}"
        if output.finish_reason is not None:
            self._finish(output)
        return output

    def output(self) -> RequestOutput:
        """An empty delta of this sequence."""
        request = self.sequence.request
        return RequestOutput(
            request.request_id,
            self.sequence.index,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_output_tokens=self.sequence.num_output_tokens,
            times=self.progress.times,
        )

    def end(self, reason: FinishReason, error: str | None = None) -> RequestOutput:
        """The last output of a sequence that is ended from outside."""
        output = self.output()
        output.cumulative_logprob = self.cumulative_logprob
        output.finish_reason, output.error = reason, error
        output.text = self.text.flush()
        self._finish(output)
        return output

    def _extend_text(self, output: RequestOutput, token: int) -> None:
        params = self.sampling.params
        count = output.num_output_tokens
        may_stop = count > params.min_tokens or self._grammar_ends
        if may_stop and self._is_stop_token(token):
            output.finish_reason = FinishReason.STOP
            output.stop_reason = token if token in params.stop_token_ids else None
            # The stop token is in `token_ids`; its text is not part of the answer.
            output.text = self.text.flush()
            delta = self.text.push(token, may_stop=False)
        else:
            delta = self.text.push(token, may_stop=may_stop)
            output.text = delta.text
            if delta.stop_string is not None:
                output.finish_reason, output.stop_reason = FinishReason.STOP, delta.stop_string
            elif count >= self.max_output_tokens:
                output.finish_reason = FinishReason.LENGTH
                output.text += self.text.flush()
        if params.token_texts:
            output.token_texts = [delta.token_text]

    def _is_stop_token(self, token: int) -> bool:
        params = self.sampling.params
        is_end = token in self.sampling.eos_token_ids and (not params.ignore_eos or self._grammar_ends)
        return is_end or token in params.stop_token_ids

    @property
    def _grammar_ends(self) -> bool:
        """There is a grammar, and it allows nothing more: not even `ignore_eos` and `min_tokens` can change that."""
        return self.sampling.grammar is not None and self.sampling.grammar.complete

    def _finish(self, output: RequestOutput) -> None:
        self.progress.unfinished -= 1
        output.request_finished = self.progress.unfinished == 0
