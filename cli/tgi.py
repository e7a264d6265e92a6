"""`pageport tgi`: Pageport in the place of Text Generation Inference."""

from __future__ import annotations

import click

from pageport.cli.lazy_group import LazyCommand, LazyGroup

_COMMANDS = {
    "server": LazyCommand(
        "pageport.cli.tgi_server", "server", "The command line of `text-generation-server`."
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def tgi() -> None:
    """Pageport in the place of Text Generation Inference."""
