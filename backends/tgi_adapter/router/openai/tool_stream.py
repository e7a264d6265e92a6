"""Reading a function call while the model writes it."""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass

from pageport.backends.tgi_adapter.router.openai.tools import FunctionCall, try_parse_call

_NAME = re.compile(r'\s*\{\s*"function"\s*:\s*\{\s*"_name"\s*:\s*("(?:[^"\\]|\\.)*")')


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
        self._comma_is_due = True

    def push(self, text: str) -> ToolDelta | None:
        """The text of the next token; None: nothing to tell yet, or ever."""
        self._text += text
        if self.state is ToolStreamState.BEFORE_NAME:
            return self._look_for_name()
        if self.state is ToolStreamState.ARGUMENTS:
            return ToolDelta(None, self._arguments(text))
        return None

    def _look_for_name(self) -> ToolDelta | None:
        found = _NAME.match(self._text)
        if found is None:
            return None
        try:
            name: str = json.loads(found[1])
        except ValueError:
            return None
        if FunctionCall(name, "").is_none:
            self.state = ToolStreamState.NO_TOOL
            return None
        self.state = ToolStreamState.ARGUMENTS
        return ToolDelta(name, "{" + self._arguments(self._text[found.end() :]))

    def _arguments(self, text: str) -> str:
        """Without the comma after the name, and without the brace that closes what is around the call."""
        if self._comma_is_due and (rest := text.lstrip()):
            self._comma_is_due = False
            text = rest.removeprefix(",")
        if "}" in text and try_parse_call(self._text) is not None:
            self.state = ToolStreamState.COMPLETE
            text = text.rstrip().removesuffix("}")
        return text
