"""What a model entry asks for: config.pbtxt's parameters and `<version>/model.json`, as one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageport.backends.triton_python.contract import ContractName
from pageport.backends.triton_python.vllm_arguments import (
    VllmArgument,
    judge_vllm_argument,
    meaning_of,
    translate_dtype,
)
from pageport.core import ConfigError, EngineConfig, parse_engine_config, resolve_model

MODEL_JSON = "model.json"

DEFAULT_ENGINE_CLIENT = "pageport.core:EngineClient"

# The tutorial's model stops at 15 tokens, prompt included, unless it is told otherwise.
DEFAULT_MAX_OUTPUT_LENGTH = 15

_ENGINE_FIELDS = frozenset(field.name for field in dataclasses.fields(EngineConfig))

# Parameters of Triton's Python and vLLM backends, which mean nothing here or hold anyway.
_SERVER_PARAMETERS = frozenset(
    {
        "ENABLE_VLLM_HEALTH_CHECK",
        "EXECUTION_ENV_PATH",
        "FORCE_CPU_ONLY_INPUT_TENSORS",
        "REPORT_CUSTOM_METRICS",
        "TRITON_BATCH_STRATEGY_PATH",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """One model entry, resolved.

    Attributes:
        engine_client: `module:attribute`; called with the EngineConfig, it gives an `EngineClientProtocol`.
        max_output_length: tokens of prompt and answer together; contract hf only.
        stream_interval: tokens of a sequence between two responses of a stream; the first is sent at once.
        ignored: names of settings that can be left aside; unknown: names that nobody knows.
    """

    contract: ContractName
    engine: EngineConfig
    engine_client: str = DEFAULT_ENGINE_CLIENT
    max_output_length: int = DEFAULT_MAX_OUTPUT_LENGTH
    stream_interval: int = 1
    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def read_contract(model_config: Mapping[str, Any], version_folder: Path) -> ContractName:
    """The entry's contract; all that is needed to complete its config. Raises ConfigError."""
    return _contract(_merged(model_config, version_folder))


def read_settings(model_config: Mapping[str, Any], version_folder: Path) -> Settings:
    """Read and check both places.

    Args:
        model_config: config.pbtxt as Triton hands it to the model, as a dictionary.
        version_folder: the folder of the version to load, which may hold a model.json.

    Raises:
        ConfigError: a value is wrong, two values contradict each other, or one cannot be honoured.
        ModelError: there is no model at the path given.
    """
    values = _merged(model_config, version_folder)
    contract = _contract(values)
    values.pop("contract", None)
    length = _positive("max_output_length", values.pop("max_output_length", DEFAULT_MAX_OUTPUT_LENGTH))
    interval = _positive("stream_interval", values.pop("stream_interval", 1))
    client = str(values.pop("engine_client", DEFAULT_ENGINE_CLIENT))
    engine = {name: _or_none(values.pop(name)) for name in _ENGINE_FIELDS & values.keys()}
    engine["model"] = _model_path(engine.get("model"), values.pop("huggingface_model", None), version_folder)
    engine["dtype"] = translate_dtype(engine.get("dtype", "auto"))
    ignored, unknown = [], []
    for name, value in values.items():
        if name in _SERVER_PARAMETERS or judge_vllm_argument(name, value) is VllmArgument.IGNORED:
            ignored.append(name)
        else:
            unknown.append(name)
    config = parse_engine_config(engine)
    return Settings(contract, config, client, length, interval, tuple(ignored), tuple(unknown))


def _merged(model_config: Mapping[str, Any], version_folder: Path) -> dict[str, Any]:
    """Both places in one dictionary; a name in both must have the same value."""
    merged = _read_model_json(version_folder / MODEL_JSON)
    for name, value in (model_config.get("parameters") or {}).items():
        text = value["string_value"] if isinstance(value, Mapping) else value
        if name in merged and not _same(merged[name], text):
            raise ConfigError(f"{name}: {text!r} in config.pbtxt, but {merged[name]!r} in {MODEL_JSON}")
        merged.setdefault(name, text)
    return merged


def _read_model_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold one JSON object")
    return values


def _same(json_value: Any, text: str) -> bool:
    """Whether a text, as config.pbtxt has it, means a JSON value: "64" and 64, "true" and true."""
    return bool(json_value == text or meaning_of(text) == meaning_of(json_value))


def _or_none(value: Any) -> Any:
    """None for the text that means it, else the value."""
    return None if meaning_of(value) is None else value


def _contract(values: Mapping[str, Any]) -> ContractName:
    default = ContractName.HF if "huggingface_model" in values else ContractName.VLLM
    given = values.get("contract", default)
    try:
        return ContractName(given)
    except ValueError:
        raise ConfigError(f"contract: must be {' or '.join(ContractName)} (given: {given!r:.100})") from None


def _model_path(model: Any, huggingface_model: Any, version_folder: Path) -> Path:
    """Where the model lies; relative paths start at the version's folder."""
    if model is not None and huggingface_model is not None and model != huggingface_model:
        raise ConfigError(f"model: {model!r}, but huggingface_model: {huggingface_model!r}")
    given = model if model is not None else huggingface_model
    if not isinstance(given, str) or not given:
        raise ConfigError("model: is required: the path of a model folder or .gguf file, or 'demo'")
    inside = version_folder / given
    return inside if inside.exists() else resolve_model(given)


def _positive(name: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise ConfigError(f"{name}: must be a whole number of at least 1 (given: {value!r:.100})")
    return number
