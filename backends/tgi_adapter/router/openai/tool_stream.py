"""Reading a function call while the model writes it."""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from typing import Protocol

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


class ToolStreamReader(Protocol):
    """One answer of a model that may call functions.

    Attributes:
        state: after the tokens so far.
    """

    state: ToolStreamState

    def push(self, text: str) -> ToolDelta | None:
        """The text of the next token; None: nothing to tell."""
        ...


def tool_stream_reader(*, strict: bool) -> ToolStreamReader:
    """With `strict`, one that makes the same mistakes as TGI's."""
    return StrictToolCallReader() if strict else ToolCallReader()


class ToolCallReader:
    """The arguments are whole, however the tokens part them. Where TGI's are whole too, all is as TGI tells it."""

    def __init__(self) -> None:
        self.state = ToolStreamState.BEFORE_NAME
        self._text = ""
        self._comma_is_due = True
        self._has_an_end = False

    def push(self, text: str) -> ToolDelta | None:
        self._text += text
        match self.state:
            case ToolStreamState.BEFORE_NAME:
                return self._look_for_name()
            case ToolStreamState.ARGUMENTS:
                return ToolDelta(None, self._arguments(text))
            case ToolStreamState.COMPLETE if self._has_an_end:
                return ToolDelta(None, "")
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
        delta = ToolDelta(name, "{" + self._arguments(self._text[found.end() :]))
        # TGI does not see that a call ends in the token that ends its name, and tells of the tokens after it too.
        self._has_an_end = self.state is ToolStreamState.COMPLETE
        return delta

    def _arguments(self, text: str) -> str:
        """Without the comma after the name, and without the brace that closes what is around the call."""
        if self._comma_is_due and (rest := text.lstrip()):
            self._comma_is_due = False
            text = rest.removeprefix(",")
        if "}" in text and try_parse_call(self._text) is not None:
            self.state = ToolStreamState.COMPLETE
            text = text.rstrip().removesuffix("}")
        return text


class StrictToolCallReader:
    """As TGI reads: what follows the name in the same token is lost, and a comma in a token of its own is told."""

    def __init__(self) -> None:
        self.state = ToolStreamState.BEFORE_NAME
        self._text = ""

    def push(self, text: str) -> ToolDelta | None:
        self._text += text
        if self.state is ToolStreamState.ARGUMENTS:
            return ToolDelta(None, self._arguments(text))
        call = try_parse_call(_without_end(self._text) + "}}")
        if call is None:
            return None
        if call.is_none:
            self.state = ToolStreamState.NO_TOOL
            return None
        self.state = ToolStreamState.ARGUMENTS
        return ToolDelta(call.name, "{")

    def _arguments(self, text: str) -> str:
        if try_parse_call(self._text) is None:
            return text
        self.state = ToolStreamState.BEFORE_NAME
        return text.rstrip().removesuffix("}")


def _without_end(text: str) -> str:
    end = len(text)
    while end and (text[end - 1] in ",}" or text[end - 1].isspace()):
        end -= 1
    return text[:end]
