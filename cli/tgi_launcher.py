"""`pageport tgi launcher`: the flags of `text-generation-launcher`; TGI's own router, or the embedded one."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from pageport.backends.tgi_adapter.shim import ORIGINAL, write_shim
from pageport.cli.engine_options import engine_options, given
from pageport.cli.tgi_embedded import check_limits, serve_embedded
from pageport.cli.tgi_launcher_flags import LAUNCHER_FLAGS, options_of
from pageport.core import ConfigError

_RUST = ("text-generation-launcher", "text-generation-router")
# Types of our engine that TGI's launcher does not know.
_OUR_DTYPES = ("float32", "auto")


def _is_original(context: click.Context, option: click.Parameter, value: str) -> bool:
    """Whether the original server is meant: by its name, or by a value that the variable PAGEPORT may have."""
    text = value.lower()
    if text not in (*ORIGINAL, "pageport", "1", "true", "yes", "on"):
        raise click.BadParameter(f"{value!r} is neither 'pageport' nor 'text-generation-server'")
    return text in ORIGINAL


@click.command(context_settings={"show_default": True})
@options_of(LAUNCHER_FLAGS)
@click.option(
    "--backend",
    "original",
    envvar="PAGEPORT",
    callback=_is_original,
    metavar="pageport|text-generation-server",
    default="pageport",
    help="text-generation-server: the original behind the same ports, also as PAGEPORT=0",
)
@click.option(
    "--router",
    type=click.Choice(("auto", "rust", "embedded")),
    default="auto",
    help="rust: TGI's own launcher and router, on PATH; embedded: the one that is built in; auto: rust if it is there",
)
@click.option(
    "--strict",
    is_flag=True,
    help="embedded router: refuse what TGI refuses although clients document it",
)
@partial(engine_options, but=frozenset({"dtype"}))
def launcher(original: bool, router: str, strict: bool, **options: Any) -> None:
    """Serve a model as Text Generation Inference does.

    What is said of a flag is about the embedded router; TGI's own launcher takes all of its flags as it does.
    Engine arguments (--block-size, --kv-cache-memory-bytes and so on) are ours; each can also be given as a variable
    PAGEPORT_<ARGUMENT>.
    """
    flags = {flag.name: options.pop(flag.name) for flag in LAUNCHER_FLAGS}
    engine = given(options)
    if not flags["model_id"]:
        raise ConfigError("--model-id: is required: a folder, a .gguf file, 'demo', or a name on the hub")
    check_limits(flags)
    if _use_rust(router):
        if strict:
            click.echo("pageport: --strict has no effect with TGI's own router", err=True)
        _exec_rust(flags, engine, original=original)
    if original:
        raise ConfigError(
            "--backend, PAGEPORT: the original server runs under TGI's own launcher and router: "
            f"{' and '.join(_RUST)} must be on PATH, without --router embedded"
        )
    sys.exit(serve_embedded(flags["model_id"], flags, engine, strict=strict))


def _use_rust(choice: str) -> bool:
    missing = [name for name in _RUST if shutil.which(name) is None]
    if choice == "rust" and missing:
        raise ConfigError(f"--router rust: {' and '.join(missing)} must be on PATH")
    return choice != "embedded" and not missing


def _exec_rust(flags: Mapping[str, Any], engine: Mapping[str, str], *, original: bool) -> None:
    """Become TGI's launcher, with our `text-generation-server` first on PATH. What came as a variable is inherited."""
    from pageport.cli.tgi_shim import default_shim_folder

    shim = write_shim(default_shim_folder(), sys.executable)
    environment = dict(os.environ)
    environment["PATH"] = f"{shim}{os.pathsep}{environment.get('PATH', '')}"
    environment["PAGEPORT"] = "0" if original else "1"
    environment |= {f"PAGEPORT_{name.upper()}": value for name, value in engine.items()}
    if flags["dtype"] in _OUR_DTYPES:
        environment["PAGEPORT_DTYPE"] = flags["dtype"]
        if environment.get("DTYPE") in _OUR_DTYPES:
            del environment["DTYPE"]
    arguments = [_RUST[0], *_spelled(flags)]
    os.execvpe(arguments[0], arguments, environment)


def _spelled(flags: Mapping[str, Any]) -> list[str]:
    """The flags that were given on the command line, as they were."""
    context = click.get_current_context()
    words: list[str] = []
    for flag in LAUNCHER_FLAGS:
        value = flags[flag.name]
        if context.get_parameter_source(flag.name) is not ParameterSource.COMMANDLINE:
            continue
        if flag.type is bool:
            words.append(flag.option)
        elif flag.name == "dtype" and value in _OUR_DTYPES:
            continue
        else:
            for item in value if isinstance(value, tuple) else (value,):
                words += [flag.option, str(item).lower() if isinstance(item, bool) else str(item)]
    return words
