"""The embedded router with its engine, as `pageport tgi launcher` and `pageport tgi router` start it."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pageport.cli.tgi_environment import log_environment, log_level
from pageport.core import ConfigError

_log = logging.getLogger("pageport.tgi")

# Set and without effect: one engine that batches by itself, and no GPU of the launcher's.
_NO_EFFECT = (
    "waiting_served_ratio", "max_batch_total_tokens", "max_waiting_tokens", "cuda_graphs", "prometheus_port",
    "shard_uds_path", "master_addr", "master_port", "disable_custom_kernels", "max_image_fetch_size",
)  # fmt: skip

# Set, these cannot be honoured.
_REFUSED = ("ngrok", "ngrok_authtoken", "ngrok_edge", "master_shard_uds_path", "weights_cache_override")

# Flags that are settings of the router under the same name.
_PASSED_ON = (
    "max_concurrent_requests", "max_best_of", "max_stop_sequences", "max_top_n_tokens", "max_client_batch_size",
    "validation_workers", "payload_limit", "port", "api_key", "disable_grammar_support", "enable_prefill_logprobs",
    "json_output", "otlp_endpoint", "otlp_service_name", "graceful_termination_timeout",
)  # fmt: skip

# What a shard hears from TGI's launcher by variables of the same names.
_FOR_THE_ENGINE = ("max_batch_size", "lora_adapters")

# Values that are nobody's business who reads the log.
_SECRET = ("api_key", "ngrok_authtoken")

# Tokens of one step without other orders: the default of --max-num-batched-tokens.
_STEP_TOKENS = 512


def check_limits(flags: Mapping[str, Any]) -> None:
    """What TGI refuses as well, with exit status 1.

    Raises:
        ConfigError: naming the flag, the limit and the value given.
    """
    if flags.get("max_input_tokens") and flags.get("max_input_length"):
        raise ConfigError("--max-input-tokens, --max-input-length: give one of the two")
    if flags["validation_workers"] == 0:
        raise ConfigError("--validation-workers: must be above 0 (given: 0)")
    inputs, total, capacity = _max_input(flags), flags["max_total_tokens"], flags["max_batch_total_tokens"]
    if inputs and total and inputs >= total:
        raise ConfigError(f"--max-input-tokens: must be below --max-total-tokens, {total} (given: {inputs})")
    if capacity and total and total > capacity:
        raise ConfigError(
            f"--max-total-tokens: must be at most --max-batch-total-tokens, {capacity} (given: {total})"
        )


def serve_embedded(
    model_id: str, flags: Mapping[str, Any], engine: Mapping[str, str], *, strict: bool
) -> int:
    """Serve until a signal; the exit status. What heavy modules there are is imported only now.

    Args:
        flags: of the launcher or of the router, all of them.
        engine: engine arguments that were given.

    Raises:
        ConfigError, ModelError, EngineDeadError: it cannot be started.
    """
    from pageport.backends.tgi_adapter.router.logs import configure_logging
    from pageport.backends.tgi_adapter.router.server import serve
    from pageport.backends.tgi_adapter.router.settings import RouterSettings
    from pageport.backends.tgi_adapter.shard.engine_settings import ServeFlags, read_engine_config
    from pageport.backends.tgi_adapter.shard.weights import local_model
    from pageport.core import EngineClient, Watermark

    level = log_level(os.environ.get("LOG_LEVEL"))
    configure_logging(level, json_output=flags["json_output"])
    _say_what_was_given(model_id, flags)
    _refuse_what_cannot_be(flags)
    if flags.get("huggingface_hub_cache"):
        os.environ["HF_HUB_CACHE"] = flags["huggingface_hub_cache"]
    model = local_model(model_id, flags["revision"], download=True)
    about_engine = ServeFlags(
        **{
            name: flags[name]
            for name in ("quantize", "speculate", "dtype", "kv_cache_dtype", "trust_remote_code")
            if name in flags
        }
    )
    config = read_engine_config(model, about_engine, _engine_environment(flags, engine))
    settings = RouterSettings(
        model_id=model_id,
        max_input_tokens=_max_input(flags),
        max_total_tokens=flags["max_total_tokens"] or 0,
        watermark=Watermark(_or(flags.get("watermark_gamma"), 0.5), _or(flags.get("watermark_delta"), 2.0)),
        compute_type=os.environ.get("COMPUTE_TYPE", "gpu+optimized"),
        cors_allow_origin=tuple(flags["cors_allow_origin"]),
        hostname=_address(flags["hostname"]),
        log_level=level,
        strict=strict,
        tokenizer_config_path=_path(flags["tokenizer_config_path"]),
        **{name: flags[name] for name in _PASSED_ON if name in flags},
    )
    return serve(settings, EngineClient(config), model)


def was_given(name: str) -> bool:
    """On the command line, or as a variable."""
    return _source(name) in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def names(flags: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in flags)


def _source(name: str) -> ParameterSource | None:
    return click.get_current_context().get_parameter_source(name)


def _say_what_was_given(model_id: str, flags: Mapping[str, Any]) -> None:
    """Nothing is left aside silently."""
    if flags.get("env"):
        log_environment()
    said = [
        f"{name}={'***' if name in _SECRET else value!r}" for name, value in flags.items() if was_given(name)
    ]
    _log.info("started with %s", ", ".join(said))
    left = [name for name in _NO_EFFECT if was_given(name)]
    if flags["revision"] and Path(model_id).exists():
        left.append("revision")  # a folder has none
    if left:
        _log.warning("without effect with the embedded router: %s", names(left))


def _refuse_what_cannot_be(flags: Mapping[str, Any]) -> None:
    if refused := [name for name in _REFUSED if flags.get(name)]:
        raise ConfigError(f"{names(refused)}: not supported by the embedded router")
    if (flags.get("num_shard") or 1) > 1 or flags.get("sharded"):
        raise ConfigError("--num-shard, --sharded: several ranks need TGI's own launcher and router on PATH")


def _engine_environment(flags: Mapping[str, Any], engine: Mapping[str, str]) -> dict[str, str]:
    """What TGI's launcher would tell a shard by variables, and our engine arguments."""
    environment = dict(os.environ)
    for name in _FOR_THE_ENGINE:
        if flags.get(name) is not None:
            environment[name.upper()] = str(flags[name])
    scaling, factor = flags.get("rope_scaling"), flags.get("rope_factor")
    if scaling or factor:
        environment["ROPE_SCALING"] = scaling or "linear"
        environment["ROPE_FACTOR"] = f"{_or(factor, 1.0):g}"
    if was_given("cuda_memory_fraction"):
        environment["CUDA_MEMORY_FRACTION"] = str(flags["cuda_memory_fraction"])
    # An upper limit: the engine's own step is smaller than what TGI's users give here, so that streams go on.
    if was_given("max_batch_prefill_tokens"):
        step = min(flags["max_batch_prefill_tokens"], _STEP_TOKENS)
        environment.setdefault("PAGEPORT_MAX_NUM_BATCHED_TOKENS", str(step))
    return environment | {f"PAGEPORT_{name.upper()}": value for name, value in engine.items()}


def _max_input(flags: Mapping[str, Any]) -> int:
    return flags["max_input_tokens"] or flags.get("max_input_length") or 0


def _address(hostname: str) -> str:
    """Containers set HOSTNAME to their own name, which nobody meant as an address to listen on."""
    if _source("hostname") is not ParameterSource.ENVIRONMENT:
        return hostname
    try:
        ipaddress.ip_address(hostname)
    except ValueError:
        _log.warning("HOSTNAME: %r is not an address; listening on 0.0.0.0", hostname)
        return "0.0.0.0"
    return hostname


def _path(name: str | None) -> Path | None:
    if name is not None and not Path(name).is_file():
        raise ConfigError(f"--tokenizer-config-path: there is no file {name!r}")
    return None if name is None else Path(name)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
