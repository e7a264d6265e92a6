"""Reading a function call while the model writes it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pageport.backends.tgi_adapter.router.openai.tools import try_parse_call

# What may follow the function's name in the text so far; without it and with the braces closed, it is a whole call.
_AFTER_NAME = " \t\r\n,}"


class ToolStreamState(enum.Enum):
    """How much of a call there is."""

    BEFORE_NAME = enum.auto()
    ARGUMENTS = enum.auto()
    COMPLETE = enum.auto()
    NO_TOOL = enum.auto()


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """What clients learn of a call with one token; joined, `arguments` are JSON.

    Attributes:
        name: on the first.
    """

    name: str | None
    arguments: str


class ToolCallReader:
    """One answer of a model that may call functions.

    Attributes:
        state: after the tokens so far.
    """

    def __init__(self) -> None:
        self.state = ToolStreamState.BEFORE_NAME
        self._text = ""
        self._comma_is_due = False

    def push(self, text: str) -> ToolDelta | None:
        """The text of the next token; None: nothing to tell yet, or ever."""
        self._text += text
        if self.state is ToolStreamState.BEFORE_NAME:
            return self._look_for_name()
        return self._arguments(text) if self.state is ToolStreamState.ARGUMENTS else None

    def _look_for_name(self) -> ToolDelta | None:
        head = self._text.rstrip(_AFTER_NAME)
        call = try_parse_call(head + "}}")
        if call is None:
            return None
        if call.is_none:
            self.state = ToolStreamState.NO_TOOL
            return None
        tail = self._text[len(head) :]
        if "}" in tail:
            self.state = ToolStreamState.COMPLETE
            return ToolDelta(call.name, "{}")
        self.state = ToolStreamState.ARGUMENTS
        self._comma_is_due = "," not in tail
        return ToolDelta(call.name, "{")

    def _arguments(self, text: str) -> ToolDelta:
        if self._comma_is_due and text.strip():
            self._comma_is_due = False
            text = text.lstrip().removeprefix(",")
        if "}" in text and try_parse_call(self._text) is not None:
            self.state = ToolStreamState.COMPLETE
            text = text.rstrip().removesuffix("}")
        return ToolDelta(None, text)
