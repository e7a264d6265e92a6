"""Tokens to text, as they come: whole characters only, and no part of a stop string let out early."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from pageport.core.sampling_modes import StopMatch

# Some decoders treat the first token of a text in their own way (they drop its leading space). Feeding the end of
# the prompt first makes the first generated token an ordinary one.
_CONTEXT_TOKENS = 8

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class TextDelta(NamedTuple):
    """What one token brings.

    Attributes:
        text: what may be shown now.
        stop_string: the one that ended the text, if one did.
        token_text: what the token itself added, held back or not.
    """

    text: str
    stop_string: str | None = None
    token_text: str = ""


class TextStream:
    """The text of one sequence.

    Text that could still turn out to be the beginning of a stop string is held back until it is clear. Bytes of
    an unfinished UTF-8 character are held back by the decode stream itself, and never come out if the sequence
    ends there.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        stop: Sequence[str] = (),
        include_stop_string: bool = False,
        skip_special_tokens: bool = True,
        stop_match: StopMatch = StopMatch.ANYWHERE,
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=skip_special_tokens)
        context = prompt_token_ids[-_CONTEXT_TOKENS:]
        # A prompt may end in the middle of a character (cut, or given as tokens): its bytes would come out with the
        # first ones generated.
        if tokenizer.decode(list(context), skip_special_tokens=skip_special_tokens).endswith(_BROKEN):
            context = ()
        for token in context:
            self._decoder.step(tokenizer, token)
        self._stop = tuple(stop)
        self._include_stop_string = include_stop_string
        self._held = ""
        self._at_token_end = stop_match is StopMatch.AT_TOKEN_END
        self._tail = ""  # the end of the text, where it is looked at
        self._tail_length = (
            max(map(len, self._stop), default=0) + 1
        )  # the longest stop string and a line break

    def push(self, token: int, *, may_stop: bool = True) -> TextDelta:
        """Add one token. `may_stop=False`: stop strings that it completes are ordinary text (min_tokens)."""
        added = self._decoder.step(self._tokenizer, token) or ""
        if self._at_token_end:
            stop_string = self._stop_at_end(added)
            return TextDelta(added, stop_string if may_stop else None, added)
        self._held += added
        if not may_stop:
            return TextDelta(self.flush(), None, added)
        match = self._first_stop()
        if match is not None:
            position, stop = match
            end = position + (len(stop) if self._include_stop_string else 0)
            text, self._held = self._held[:end], ""
            return TextDelta(text, stop, added)
        keep = self._possible_stop_length()
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return TextDelta(text, None, added)

    def flush(self) -> str:
        """What is held back, once nothing more can come."""
        text, self._held = self._held, ""
        return text

    def _stop_at_end(self, text: str) -> str | None:
        """The first listed stop string that the text now ends with, if this token added to it.

        As in TGI, a line break may follow it: one token can be a full stop and the end of the line.
        """
        if not self._stop or not text:
            return None
        self._tail = (self._tail + text)[-self._tail_length :]
        ends = (self._tail, self._tail.removesuffix("\n"))
        return next((stop for stop in self._stop if any(end.endswith(stop) for end in ends)), None)

    def _first_stop(self) -> tuple[int, str] | None:
        """The stop string that occurs first; of those at one place, the one listed first."""
        found = [(position, stop) for stop in self._stop if (position := self._held.find(stop)) >= 0]
        return min(found, key=lambda match: match[0], default=None)

    def _possible_stop_length(self) -> int:
        """Length of the longest end of the held text that begins some stop string."""
        for length in range(min(len(self._held), max(map(len, self._stop), default=1) - 1), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0
