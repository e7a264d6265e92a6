"""`pageport tgi server`: the command line of `text-generation-server`, as TGI's launcher calls it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from pageport.backends.tgi_adapter.shard.launcher_log import log_for_launcher
from pageport.backends.tgi_adapter.shard.serve import serve as serve_shard
from pageport.backends.tgi_adapter.shard.settings import engine_arguments, read_shard_settings
from pageport.backends.tgi_adapter.shard.weights import check_weights, local_model
from pageport.core import ConfigError, PageportError, parse_engine_config

logger = logging.getLogger("pageport.tgi")

# The launcher may be newer than we are: what it says beyond this is named in the log and left aside.
_LENIENT: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}

# Accepted, and without effect here.
_NO_EFFECT = ("speculate", "otlp_endpoint", "trust_remote_code")


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
    model_id: str,
    revision: str | None,
    extension: str,
    logger_level: str,
    json_output: bool,
    **_: Any,
) -> None:
    """Make sure that a model's weights are here."""
    log_for_launcher(logger_level, json_output=json_output)
    _name_unknown()
    check_weights(local_model(model_id, revision, download=True), extension)


@server.command(context_settings=_LENIENT)
@click.argument("model_id")
@click.option("--revision", default=None)
@click.option("--sharded/--no-sharded", default=False, help="one of several ranks: see RANK and WORLD_SIZE")
@click.option("--quantize", default=None)
@click.option("--speculate", type=int, default=None)
@click.option("--dtype", default=None, type=click.Choice(["float16", "bfloat16", "float32", "auto"]))
@click.option("--kv-cache-dtype", default=None)
@click.option("--trust-remote-code", is_flag=True)
@click.option(
    "--uds-path", default="/tmp/text-generation-server", show_default=True, type=click.Path(path_type=Path)
)
@click.option("--logger-level", default="INFO", show_default=True)
@click.option("--json-output", is_flag=True)
@click.option("--otlp-endpoint", default=None)
@click.option("--otlp-service-name", default="text-generation-inference.server")
@click.option("--max-input-tokens", type=int, default=None)
def serve(model_id: str, uds_path: Path, logger_level: str, json_output: bool, **flags: Any) -> None:
    """Serve a model to TGI's router."""
    log_for_launcher(logger_level, json_output=json_output)
    _name_unknown()
    for name in _NO_EFFECT:
        if flags.get(name):
            logger.warning("--%s has no effect here", name.replace("_", "-"))
    settings = read_shard_settings(str(uds_path), os.environ)
    config = parse_engine_config(_engine_values(model_id, flags))
    reason = asyncio.run(serve_shard(config, settings))
    if reason is not None:
        raise reason


def _engine_values(model_id: str, flags: dict[str, Any]) -> dict[str, Any]:
    """Flags and variables as engine arguments.

    Raises:
        ConfigError: the launcher asks for what this engine does not do.
    """
    for name in ("quantize", "kv_cache_dtype"):
        if flags.get(name):
            raise ConfigError(f"--{name.replace('_', '-')}: {flags[name]!r} is not supported; leave it out")
    if os.environ.get("ROPE_SCALING") or os.environ.get("ROPE_FACTOR"):
        raise ConfigError(
            "--rope-scaling, --rope-factor: set rope_scaling in the model's config.json instead"
        )
    values: dict[str, Any] = {"model": local_model(model_id, flags["revision"], download=False)}
    if flags.get("dtype"):
        values["dtype"] = flags["dtype"]
    return values | engine_arguments(os.environ)


def _name_unknown() -> None:
    unknown = click.get_current_context().args
    if unknown:
        logger.warning("unknown arguments are left aside: %s", " ".join(unknown))


def main() -> None:
    """Run as `text-generation-server`: whatever goes wrong is on standard error, where the launcher looks for it."""
    try:
        server.main(prog_name="text-generation-server", standalone_mode=True)
    except PageportError as error:
        click.echo(f"pageport: {error}", err=True)
        sys.exit(1)
