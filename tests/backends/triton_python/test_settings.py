"""Settings from config.pbtxt and model.json: what is read, what is ignored aloud, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pageport.backends.triton_python.contract import ContractName
from pageport.backends.triton_python.settings import Settings, read_contract, read_settings
from pageport.core import ConfigError, ModelError


@pytest.fixture
def version(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    return tmp_path


def read(version: Path, parameters: dict[str, str] | None = None, model_json: Any = None) -> Settings:
    if model_json is not None:
        (version / "model.json").write_text(json.dumps(model_json))
    config = {"parameters": {k: {"string_value": v} for k, v in (parameters or {}).items()}}
    return read_settings(config, version)


def test_parameters_of_config_pbtxt(version: Path) -> None:
    model = str(version / "weights")
    settings = read(version, {"contract": "vllm", "model": model, "max_num_seqs": "7", "dtype": "float32"})
    assert settings.contract is ContractName.VLLM
    assert settings.engine.model == version / "weights"
    assert (settings.engine.max_num_seqs, settings.engine.dtype) == (7, "float32")
    assert settings.engine_client == "pageport.core:EngineClient"


def test_model_json_of_vllm_backend_loads_and_names_what_it_leaves_aside(version: Path) -> None:
    values = {
        "model": "weights",
        "disable_log_requests": True,
        "gpu_memory_utilization": 0.5,
        "enforce_eager": True,
        "tensor_parallel_size": 1,
        "quantization": None,
        "dtype": "half",
        "max_model_len": 512,
        "tensor_parallel_sizes": 2,
    }
    settings = read(version, model_json=values)
    assert settings.contract is ContractName.VLLM
    assert settings.engine.model == version / "weights", "relative to the version's folder"
    assert settings.engine.quantization is None
    assert (settings.engine.dtype, settings.engine.max_model_len) == ("float16", 512)
    assert settings.engine.enforce_eager is True
    assert set(settings.ignored) == {"disable_log_requests", "tensor_parallel_size"}
    assert settings.unknown == ("tensor_parallel_sizes",)


def test_tutorial_parameters_choose_the_hf_contract(version: Path) -> None:
    settings = read(version, {"huggingface_model": str(version / "weights")})
    assert (settings.contract, settings.max_output_length) == (ContractName.HF, 15)
    assert read_contract({"parameters": {"contract": {"string_value": "vllm"}}}, version) is ContractName.VLLM


@pytest.mark.parametrize(
    ("text", "value"), [("64", 64), ("0.50", 0.5), ("true", True), ("True", True), ("auto", "auto")]
)
def test_the_same_value_in_both_places_is_no_contradiction(version: Path, text: str, value: Any) -> None:
    settings = read(version, {"seed_note": text}, {"model": "weights", "seed_note": value})
    assert settings.unknown == ("seed_note",)


@pytest.mark.parametrize(
    ("parameters", "values", "message"),
    [
        (
            {"max_num_seqs": "8"},
            {"max_num_seqs": 16},
            "max_num_seqs: '8' in config.pbtxt, but 16 in model.json",
        ),
        ({"contract": "openai"}, {}, "contract: must be vllm or hf"),
        ({"huggingface_model": "other"}, {}, "model: 'weights', but huggingface_model: 'other'"),
        ({"max_num_seqs": "none"}, {}, "max_num_seqs"),
        ({"max_num_seqs": "0"}, {}, "max_num_seqs"),
        ({"max_output_length": "0"}, {}, "max_output_length: must be a whole number"),
        ({"stream_interval": "x"}, {}, "stream_interval: must be a whole number"),
        ({}, {"tensor_parallel_size": 2}, "tensor_parallel_size: 2 is not supported; possible: 1"),
        ({"tensor_parallel_size": "2"}, {}, "tensor_parallel_size: '2' is not supported"),
        ({}, {"quantization": "awq"}, "quantization: Input should be 'gguf' (given: 'awq')"),
        ({}, {"enable_lora": True}, "enable_lora: True is not supported; possible: False"),
        ({}, {"enable_lora": "true"}, "enable_lora: 'true' is not supported"),
        ({}, {"speculative_config": {"method": "ngram"}}, "speculative_config"),
        ({}, {"kv_cache_dtype": "fp8"}, "kv_cache_dtype: 'fp8'"),
        ({}, {"dtype": "int3"}, "dtype"),
    ],
)
def test_contradictions_and_what_cannot_be_honoured_are_refused(
    version: Path, parameters: dict[str, str], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match="^" + message.split(" ")[0]) as caught:
        read(version, parameters, {"model": "weights", **values})
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_a_broken_model_json_is_named(version: Path, text: str) -> None:
    (version / "model.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"model\.json"):
        read(version)


def test_a_model_must_be_named_and_exist(version: Path) -> None:
    with pytest.raises(ConfigError, match="model: is required"):
        read(version)
    with pytest.raises(ModelError, match="there is no model at"):
        read(version, {"model": "/nowhere"})
    (version / "model.json").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="model: is required"):
        read(version, model_json={"model": 7})


def test_text_values_that_mean_the_only_possible_one_are_fine(version: Path) -> None:
    """config.pbtxt knows nothing but text."""
    parameters = {"tensor_parallel_size": "1", "enable_lora": "false"}
    settings = read(version, parameters | {"quantization": "None"}, {"model": "weights"})
    assert set(settings.ignored) == set(parameters)
    assert settings.engine.quantization is None
    assert read(version, {"quantization": "gguf"}, {"model": "weights"}).engine.quantization == "gguf"
