"""`pageport tgi`: Pageport in the place of Text Generation Inference."""

from __future__ import annotations

import click

from pageport.cli.lazy_group import LazyCommand, LazyGroup

_COMMANDS = {
    "launcher": LazyCommand(
        "pageport.cli.tgi_launcher", "launcher", "Serve as `text-generation-launcher` does, with its flags."
    ),
    "router": LazyCommand(
        "pageport.cli.tgi_router", "router", "Serve by the embedded router, with the flags of TGI's router."
    ),
    "shim-dir": LazyCommand(
        "pageport.cli.tgi_shim", "shim_dir", "A folder that makes TGI's launcher start Pageport."
    ),
    "server": LazyCommand(
        "pageport.cli.tgi_server", "server", "The command line of `text-generation-server`."
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def tgi() -> None:
    """Pageport in the place of Text Generation Inference."""
