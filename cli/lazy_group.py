"""A click group that knows its commands by name, and imports one only to run it."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import click


class LazyCommand(NamedTuple):
    """Where a command lives, and its line of help: showing the help imports none of the modules."""

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """`lazy` maps the name of each command to its place."""

    def __init__(self, *args: Any, lazy: dict[str, LazyCommand], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        place = self._lazy[cmd_name]
        command = getattr(importlib.import_module(place.module), place.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{place.module}.{place.attribute} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy[name].help) for name in self.list_commands(ctx)])
