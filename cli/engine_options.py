"""Every engine argument as a command-line flag, made from the fields of `EngineConfig`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pageport.core import EngineConfig

_Command = TypeVar("_Command", bound=Callable[..., Any])
_NOT_FLAGS = {"model"}  # commands have their own, which also takes the name "demo"


def engine_options(command: _Command, *, but: frozenset[str] = frozenset()) -> _Command:
    """Add `--max-num-seqs` and its like to a click command; each arrives as text, None where it was not given.

    Values are checked where the configuration is built, so that a flag and a key in a file read the same way.

    Args:
        but: names of fields that the command has flags of its own for.
    """
    for field in reversed(dataclasses.fields(EngineConfig)):
        if field.name not in _NOT_FLAGS | but:
            # pydantic keeps a field's declaration as the dataclass default
            text = getattr(field.default, "description", None)
            option = click.option(f"--{field.name.replace('_', '-')}", field.name, metavar="VALUE", help=text)
            command = option(command)
    return command


def given(options: dict[str, str | None]) -> dict[str, str]:
    """Only the flags that the user gave."""
    return {name: value for name, value in options.items() if value is not None}
