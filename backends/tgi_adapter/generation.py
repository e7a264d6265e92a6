"""What the engine says of one request, as TGI's tokens: one event a token, the whole text at the end."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.core import FinishReason, PositionLogprobs, RequestOutput

# Where a decoder treats the first token of a text in its own way, these tokens of the prompt go before it.
_CONTEXT_TOKENS = 5
# What a decoder writes for bytes that are no whole character.
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class StopReason(enum.StrEnum):
    """Why an answer ended, in TGI's words."""

    LENGTH = "length"
    EOS_TOKEN = "eos_token"
    STOP_SEQUENCE = "stop_sequence"


class GenerationFailedError(Exception):
    """The engine ended the request without an answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer, or an alternative to it."""

    id: int
    text: str
    logprob: float
    special: bool


@dataclass(frozen=True, slots=True)
class PrefillToken:
    """One token of the prompt; the first has no log-probability."""

    id: int
    text: str
    logprob: float | None


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """The end of an answer.

    Attributes:
        text: all of it, without special tokens; the text of a stop sequence is kept.
        seed: only where tokens were drawn at random.
    """

    text: str
    generated_tokens: int
    finish_reason: StopReason
    seed: int | None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What one generated token brings.

    Attributes:
        top_tokens: likeliest first; empty where none were asked for.
        prefill: on the first event, where asked for; else empty.
        generated: on the last event.
    """

    token: Token
    top_tokens: tuple[Token, ...] = ()
    prefill: tuple[PrefillToken, ...] = ()
    generated: GeneratedText | None = None


class TokenSpeller:
    """Each token's own text and whether it is special; one for a tokenizer, shared by all requests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._special = frozenset(
            token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self._texts: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.tokenizer.decode([token_id], skip_special_tokens=False)
        return text

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special


class GenerationReader:
    """Turns the outputs of one request (n = 1) into TGI's events.

    Args:
        prompt_ids: the tokens the engine was given.
    """

    def __init__(
        self, speller: TokenSpeller, prompt_ids: Sequence[int], parameters: GenerationParameters
    ) -> None:
        self._speller = speller
        self._prompt_ids = list(prompt_ids)
        self._parameters = parameters
        self._output_ids: list[int] = []

    @property
    def num_generated(self) -> int:
        return len(self._output_ids)

    def text(self) -> str:
        """All the text so far, without special tokens and without a character that is not complete."""
        decode = self._speller.tokenizer.decode
        context = self._prompt_ids[-_CONTEXT_TOKENS:]
        before: str = decode(context, skip_special_tokens=True)
        if before.endswith(_BROKEN):  # what completes the character would stand at another place
            context, before = [], ""
        text: str = decode(context + self._output_ids, skip_special_tokens=True)
        return text[len(before) :].rstrip(_BROKEN)

    def read(self, output: RequestOutput) -> list[TokenEvent]:
        """The events of one delta, in order.

        Raises:
            GenerationFailedError: the engine failed, or the request was cancelled.
        """
        if output.finish_reason in (FinishReason.CANCELLED, FinishReason.ERROR):
            raise GenerationFailedError(output.error or "the request was cancelled")
        assert output.logprobs is not None and output.token_texts is not None
        events = []
        for token_id, text, position in zip(
            output.token_ids, output.token_texts, output.logprobs, strict=True
        ):
            prefill = self._prefill(output) if not self._output_ids else ()
            self._output_ids.append(token_id)
            token = Token(token_id, text, position[token_id].logprob, self._speller.is_special(token_id))
            events.append(TokenEvent(token, self._top_tokens(position), prefill))
        if output.finish_reason is not None and events:
            last = events[-1]
            events[-1] = TokenEvent(last.token, last.top_tokens, last.prefill, self._end(output))
        return events

    def _prefill(self, output: RequestOutput) -> tuple[PrefillToken, ...]:
        if output.prompt_logprobs is None:
            return ()
        return tuple(
            PrefillToken(
                token_id,
                self._speller.text(token_id),
                None if position is None else position[token_id].logprob,
            )
            for token_id, position in zip(self._prompt_ids, output.prompt_logprobs, strict=True)
        )

    def _top_tokens(self, position: PositionLogprobs) -> tuple[Token, ...]:
        """The likeliest tokens; the chosen one stands among them only if it is as likely as the last."""
        wanted = self._parameters.top_n_tokens
        if wanted == 0:
            return ()
        ranked = sorted(position.items(), key=lambda item: item[1].rank)
        leading = ranked[: min(wanted, len(ranked))]
        threshold = leading[-1][1].logprob
        return tuple(
            Token(token_id, value.decoded_token, value.logprob, self._speller.is_special(token_id))
            for token_id, value in ranked
            if value.logprob >= threshold
        )

    def _end(self, output: RequestOutput) -> GeneratedText:
        parameters = self._parameters
        return GeneratedText(
            self.text(),
            len(self._output_ids),
            self._stop_reason(output),
            parameters.seed if parameters.is_sampled else None,
        )

    def _stop_reason(self, output: RequestOutput) -> StopReason:
        """TGI checks the length first, then the end token, then the stop sequences."""
        if len(self._output_ids) >= self._parameters.max_new_tokens:
            return StopReason.LENGTH
        if output.finish_reason is FinishReason.STOP and not isinstance(output.stop_reason, str):
            return StopReason.EOS_TOKEN
        if self._parameters.stops_at_once or isinstance(output.stop_reason, str):
            return StopReason.STOP_SEQUENCE
        return StopReason.LENGTH  # the context of the model was full
