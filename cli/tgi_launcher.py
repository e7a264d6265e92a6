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
from pageport.cli.tgi_launcher_flags import FLAGS, NO_EFFECT, REFUSED, launcher_flags
from pageport.core import ConfigError

_RUST = ("text-generation-launcher", "text-generation-router")
_OURS = frozenset({"backend", "router", "strict"})


@click.command(context_settings={"show_default": True})
@launcher_flags
@click.option(
    "--backend",
    envvar="PAGEPORT",
    default="pageport",
    help="pageport, or text-generation-server: the original behind the same ports",
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
def launcher(**options: Any) -> None:
    """Serve a model as Text Generation Inference does.

    Engine arguments (--block-size, --kv-cache-memory-bytes and so on) are ours; each can also be given as a variable
    PAGEPORT_<ARGUMENT>.
    """
    flags = {flag.name: options.pop(flag.name) for flag in FLAGS if flag.name in options}
    ours = {name: options.pop(name) for name in _OURS}
    engine = given(options)
    _check(flags)
    original = ours["backend"].lower() in ORIGINAL
    if _use_rust(ours["router"]):
        _exec_rust(flags, engine, original=original)
    if original:
        raise ConfigError(
            f"--backend {ours['backend']}: the original server runs under TGI's own launcher; {' and '.join(_RUST)} "
            "must be on PATH"
        )
    sys.exit(_serve_embedded(flags, engine, strict=ours["strict"]))


def _check(flags: Mapping[str, Any]) -> None:
    """What TGI's launcher refuses as well, with exit status 1."""
    if not flags["model_id"]:
        raise ConfigError("--model-id: is required: a folder, a .gguf file, 'demo', or a name on the hub")
    if flags["max_input_tokens"] and flags["max_input_length"]:
        raise ConfigError("--max-input-tokens, --max-input-length: give one of the two")
    if flags["validation_workers"] == 0:
        raise ConfigError("--validation-workers: must be above 0 (given: 0)")
    inputs, total = flags["max_input_tokens"] or flags["max_input_length"], flags["max_total_tokens"]
    if inputs and total and inputs >= total:
        raise ConfigError(f"--max-input-tokens: must be below --max-total-tokens, {total} (given: {inputs})")
    capacity = flags["max_batch_total_tokens"]
    if capacity and total and total > capacity:
        raise ConfigError(
            f"--max-total-tokens: must be at most --max-batch-total-tokens, {capacity} (given: {total})"
        )


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
    arguments = [_RUST[0], *_spelled(flags)]
    if flags["dtype"] in ("float32", "auto"):  # which TGI's launcher does not know
        environment["PAGEPORT_DTYPE"] = flags["dtype"]
    os.execvpe(arguments[0], arguments, environment)


def _spelled(flags: Mapping[str, Any]) -> list[str]:
    """The flags that were given on the command line, as they were."""
    context = click.get_current_context()
    words: list[str] = []
    for flag in FLAGS:
        value = flags[flag.name]
        if context.get_parameter_source(flag.name) is not ParameterSource.COMMANDLINE:
            continue
        if flag.type is bool:
            words.append(flag.option)
        elif flag.name == "dtype" and value in ("float32", "auto"):
            continue
        else:
            for item in value if isinstance(value, tuple) else (value,):
                words += [flag.option, str(item).lower() if isinstance(item, bool) else str(item)]
    return words


def _serve_embedded(flags: Mapping[str, Any], engine: Mapping[str, str], *, strict: bool) -> int:
    """The router and its engine in this process and its child. Imported only now: the other ways need none of it."""
    from pageport.backends.tgi_adapter.router.server import serve
    from pageport.backends.tgi_adapter.router.settings import RouterSettings
    from pageport.backends.tgi_adapter.shard.engine_settings import ServeFlags, read_engine_config
    from pageport.backends.tgi_adapter.shard.weights import local_model
    from pageport.core import EngineClient, Watermark

    _name_what_is_left(flags)
    environment = _shard_environment(flags, engine)
    if flags["huggingface_hub_cache"]:
        os.environ["HF_HUB_CACHE"] = flags["huggingface_hub_cache"]
    model = local_model(flags["model_id"], flags["revision"], download=True)
    about_engine = ServeFlags(
        quantize=flags["quantize"],
        speculate=flags["speculate"],
        dtype=flags["dtype"],
        kv_cache_dtype=flags["kv_cache_dtype"],
        trust_remote_code=flags["trust_remote_code"],
    )
    config = read_engine_config(model, about_engine, environment)
    settings = RouterSettings(
        model_id=flags["model_id"],
        max_input_tokens=flags["max_input_tokens"] or flags["max_input_length"] or 0,
        max_total_tokens=flags["max_total_tokens"] or 0,
        watermark=Watermark(_or(flags["watermark_gamma"], 0.5), _or(flags["watermark_delta"], 2.0)),
        compute_type=os.environ.get("COMPUTE_TYPE", "gpu+optimized"),
        cors_allow_origin=tuple(flags["cors_allow_origin"]),
        log_level=os.environ.get("LOG_LEVEL", "info"),
        strict=strict,
        **{name: flags[name] for name in _PASSED_ON},
    )
    return serve(settings, EngineClient(config), model)


# Flags that are settings of the router under the same name.
_PASSED_ON = (
    "max_concurrent_requests", "max_best_of", "max_stop_sequences", "max_top_n_tokens", "max_client_batch_size",
    "validation_workers", "payload_limit", "hostname", "port", "api_key", "disable_grammar_support",
    "enable_prefill_logprobs", "json_output", "otlp_endpoint", "otlp_service_name", "graceful_termination_timeout",
)  # fmt: skip


def _shard_environment(flags: Mapping[str, Any], engine: Mapping[str, str]) -> dict[str, str]:
    """What TGI's launcher would tell a shard by variables, and our engine arguments."""
    environment = dict(os.environ)
    for name in ("max_batch_size", "rope_scaling", "rope_factor", "lora_adapters", "weights_cache_override"):
        if flags[name] is not None:
            environment[name.upper()] = str(flags[name])
    if _was_given("cuda_memory_fraction"):
        environment["CUDA_MEMORY_FRACTION"] = str(flags["cuda_memory_fraction"])
    if flags["max_batch_prefill_tokens"]:
        environment.setdefault("PAGEPORT_MAX_NUM_BATCHED_TOKENS", str(flags["max_batch_prefill_tokens"]))
    return environment | {f"PAGEPORT_{name.upper()}": value for name, value in engine.items()}


def _name_what_is_left(flags: Mapping[str, Any]) -> None:
    """Nothing is left aside silently.

    Raises:
        ConfigError: a flag that would change answers and is not supported.
    """
    for name in REFUSED:
        if flags[name]:
            raise ConfigError(f"--{name.replace('_', '-')}: is not supported by the embedded router")
    if (flags["num_shard"] or 1) > 1 or flags["sharded"]:
        raise ConfigError("--num-shard, --sharded: several ranks need TGI's own launcher and router on PATH")
    left = [f"--{name.replace('_', '-')}" for name in NO_EFFECT if _was_given(name)]
    if left:
        click.echo(f"pageport: without effect with the embedded router: {', '.join(left)}", err=True)


def _was_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) in (
        ParameterSource.COMMANDLINE,
        ParameterSource.ENVIRONMENT,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
