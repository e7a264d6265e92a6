"""`pageport tgi router`: the embedded router with its engine, by the flags of `text-generation-router`."""

from __future__ import annotations

import sys
from typing import Any

import click

from pageport.cli.engine_options import engine_options, given
from pageport.cli.tgi_embedded import check_limits, serve_embedded
from pageport.cli.tgi_launcher_flags import ROUTER_FLAGS, options_of
from pageport.core import ConfigError


@click.command(context_settings={"show_default": True})
@options_of(ROUTER_FLAGS)
@click.option("--strict", is_flag=True, help="refuse what TGI refuses although clients document it")
@engine_options
def router(strict: bool, **options: Any) -> None:
    """Serve a model by the embedded router, for those who start `text-generation-router` by hand.

    There is no shard: the engine is the router's child.
    """
    flags = {flag.name: options.pop(flag.name) for flag in ROUTER_FLAGS}
    if not flags["tokenizer_name"]:
        raise ConfigError(
            "--tokenizer-name: is required: a folder, a .gguf file, 'demo', or a name on the hub"
        )
    check_limits(flags)
    sys.exit(serve_embedded(flags["tokenizer_name"], flags, given(options), strict=strict))
