"""What the launcher says about the engine: honoured, left aside with a warning, or refused. Nothing is left silent."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageport.backends.tgi_adapter.shard.settings import OVERCOMMIT, SUPPORT_CHUNKING
from pageport.core import ConfigError, EngineConfig, parse_engine_config

logger = logging.getLogger("pageport.tgi")

_PREFIX = "PAGEPORT_"
_ENGINE_ARGUMENTS = {
    _PREFIX + item.name.upper(): item.name
    for item in dataclasses.fields(EngineConfig)
    if item.name != "model"
}
_OTHER_VARIABLES = {OVERCOMMIT, SUPPORT_CHUNKING, "PAGEPORT_CACHE_DIR"}

# These compress weights while they are loaded: without them the answers are those of the model as it was published.
_QUANTIZED_ON_LOAD = {"bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4", "eetq", "fp8"}

# One of these files is there where there is a GPU.
_GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")

# What TGI takes of the memory that it may have; the rest is for everything but the KV cache.
_WIGGLE_ROOM = 0.9


@dataclass(frozen=True, slots=True)
class ServeFlags:
    """Flags of `serve` that are about the engine, as the launcher gave them."""

    quantize: str | None = None
    speculate: int | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    trust_remote_code: bool = False
    otlp_endpoint: str | None = None


def read_engine_config(model: Path, flags: ServeFlags, environment: Mapping[str, str]) -> EngineConfig:
    """An engine's arguments; variables `PAGEPORT_<ARGUMENT>` come before what the launcher says.

    Raises:
        ConfigError: something is asked for that this engine does not do, or a value is wrong.
    """
    _check_quantization(model, flags.quantize)
    _check_environment(environment)
    _name_what_has_no_effect(flags, environment)
    values: dict[str, Any] = {"model": model}
    if flags.dtype:
        values["dtype"] = flags.dtype
    if environment.get("MAX_BATCH_SIZE"):
        values["max_num_seqs"] = environment["MAX_BATCH_SIZE"]
    if environment.get("CUDA_MEMORY_FRACTION") and _has_gpu(environment):
        values["gpu_memory_utilization"] = _memory_share(environment)
    return parse_engine_config(values | _engine_arguments(environment))


def _engine_arguments(environment: Mapping[str, str]) -> dict[str, str]:
    for name in sorted(environment):
        if name.startswith(_PREFIX) and name not in _ENGINE_ARGUMENTS and name not in _OTHER_VARIABLES:
            logger.warning("%s: there is no such engine argument; it is left aside", name)
    return {
        argument: environment[name] for name, argument in _ENGINE_ARGUMENTS.items() if environment.get(name)
    }


def _check_quantization(model: Path, quantize: str | None) -> None:
    method = _weights_quantization(model) or quantize
    if method is None:
        return
    if quantize in _QUANTIZED_ON_LOAD and not _weights_quantization(model):
        logger.warning("--quantize %s is left aside: the weights are used as they are", quantize)
        return
    raise ConfigError(
        f"--quantize: weights quantized by {method!r} are not supported; give the original model"
    )


def _weights_quantization(model: Path) -> str | None:
    """How the weights of a folder are quantized, as its config.json says."""
    try:
        config = json.loads((model / "config.json").read_text("utf-8"))
        method = config["quantization_config"]["quant_method"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(method)


def _check_environment(environment: Mapping[str, str]) -> None:
    # A factor of 1 changes nothing; the launcher sets it where only the kind of scaling was given.
    if environment.get("ROPE_SCALING") and environment.get("ROPE_FACTOR") != "1":
        raise ConfigError(
            f"--rope-scaling, --rope-factor: {environment['ROPE_SCALING']} by {environment.get('ROPE_FACTOR')} is not "
            "supported as a flag; put it into the model's config.json as rope_scaling"
        )
    if environment.get("LORA_ADAPTERS"):
        raise ConfigError(
            f"--lora-adapters: adapters are not supported (given: {environment['LORA_ADAPTERS']!r:.100}); "
            "a request that names one would be answered by the base model"
        )


def _name_what_has_no_effect(flags: ServeFlags, environment: Mapping[str, str]) -> None:
    if flags.kv_cache_dtype and flags.kv_cache_dtype != "auto":
        logger.warning("--kv-cache-dtype %s: the KV cache keeps the model's own type", flags.kv_cache_dtype)
    if flags.speculate:
        logger.warning("--speculate %d: no tokens are speculated", flags.speculate)
    if flags.trust_remote_code:
        logger.warning("--trust-remote-code: code that comes with a model is never run")
    if environment.get("DISABLE_CUSTOM_KERNELS"):
        logger.warning("--disable-custom-kernels: no effect; PAGEPORT_KERNEL_BACKEND chooses kernels")
    # The launcher always says 1.
    if environment.get("CUDA_MEMORY_FRACTION", "1") not in ("", "1", "1.0") and not _has_gpu(environment):
        logger.warning(
            "--cuda-memory-fraction: there is no GPU; PAGEPORT_KV_CACHE_MEMORY_BYTES sizes the KV cache"
        )
    if flags.otlp_endpoint:
        logger.warning("--otlp-endpoint: the shard sends no traces; the router's go on")


def _memory_share(environment: Mapping[str, str]) -> float:
    try:
        fraction = float(environment["CUDA_MEMORY_FRACTION"])
        room = float(environment.get("TGI_WIGGLE_ROOM") or _WIGGLE_ROOM)
    except ValueError as error:
        raise ConfigError(f"CUDA_MEMORY_FRACTION, TGI_WIGGLE_ROOM: {error}") from None
    return fraction * room


def _has_gpu(environment: Mapping[str, str]) -> bool:
    """Whether there is a GPU to take memory of. Without torch, which only the engine's process loads."""
    if environment.get("PAGEPORT_DEVICE") == "cpu":
        return False
    return any(Path(device).exists() for device in _GPU_DEVICES)
