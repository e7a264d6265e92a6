"""`pageport tgi server`: the command line of `text-generation-server`, as TGI's launcher calls it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from pageport.backends.tgi_adapter.shard.engine_settings import ServeFlags, read_engine_config
from pageport.backends.tgi_adapter.shard.launcher_log import log_for_launcher
from pageport.backends.tgi_adapter.shard.serve import serve as serve_shard
from pageport.backends.tgi_adapter.shard.settings import read_shard_settings
from pageport.backends.tgi_adapter.shard.weights import check_weights, local_model
from pageport.core import PageportError

logger = logging.getLogger("pageport.tgi")

# The launcher may know flags that we do not: they are named in the log, and left aside.
_LENIENT: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}

_DEFAULT_UDS_PATH = Path(tempfile.gettempdir()) / "text-generation-server"


@click.group()
def server() -> None:
    """The command line of `text-generation-server`."""


@server.command(context_settings=_LENIENT)
@click.argument("model_id")
@click.option("--revision", default=None)
@click.option("--extension", default=".safetensors", show_default=True)
@click.option("--trust-remote-code", is_flag=True, help="accepted; code of a model is never run")
@click.option("--logger-level", default="INFO", show_default=True)
@click.option("--json-output", is_flag=True)
@click.option("--auto-convert/--no-auto-convert", default=True, help="accepted; nothing is converted")
@click.option("--merge-lora", is_flag=True, help="accepted; adapters are not merged")
def download_weights(
    model_id: str, revision: str | None, extension: str, logger_level: str, json_output: bool, **_: Any
) -> None:
    """Make sure that a model's weights are on this machine."""
    log_for_launcher(logger_level, json_output=json_output)
    _name_unknown()
    check_weights(local_model(model_id, revision, download=True), extension)


@server.command(context_settings=_LENIENT)
@click.argument("model_id")
@click.option("--revision", default=None)
@click.option("--sharded/--no-sharded", default=False, help="accepted; WORLD_SIZE and RANK count")
@click.option("--quantize", default=None)
@click.option("--speculate", type=int, default=None)
@click.option("--dtype", default=None, type=click.Choice(["auto", "float16", "bfloat16", "float32"]))
@click.option("--kv-cache-dtype", default=None)
@click.option("--trust-remote-code", is_flag=True)
@click.option("--uds-path", default=_DEFAULT_UDS_PATH, show_default=True, type=click.Path(path_type=Path))
@click.option("--logger-level", default="INFO", show_default=True)
@click.option("--json-output", is_flag=True)
@click.option("--otlp-endpoint", default=None)
@click.option("--otlp-service-name", default=None, help="accepted; the shard sends no traces")
@click.option(
    "--max-input-tokens", type=int, default=None, help="accepted; the router's warm-up says it again"
)
def serve(
    model_id: str,
    revision: str | None,
    sharded: bool,
    uds_path: Path,
    logger_level: str,
    json_output: bool,
    otlp_service_name: str | None,
    max_input_tokens: int | None,
    **flags: Any,
) -> None:
    """Serve a model to TGI's router. Variables PAGEPORT_<ENGINE ARGUMENT> set what the launcher has no flag for."""
    log_for_launcher(logger_level, json_output=json_output)
    _name_unknown()
    config = read_engine_config(
        local_model(model_id, revision, download=False), ServeFlags(**flags), os.environ
    )
    settings = read_shard_settings(str(uds_path), os.environ, block_size=config.block_size)
    reason = asyncio.run(serve_shard(config, settings))
    if reason is not None:
        raise reason


def _name_unknown() -> None:
    unknown = click.get_current_context().args
    if unknown:
        logger.warning("unknown arguments are left aside: %s", " ".join(unknown))


def main() -> None:
    """Run as `text-generation-server`: what goes wrong is on standard error, where the launcher looks for it."""
    try:
        server.main(prog_name="text-generation-server", standalone_mode=True)
    except PageportError as error:
        click.echo(f"pageport: {error}", err=True)
        sys.exit(1)
