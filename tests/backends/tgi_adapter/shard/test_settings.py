"""What the launcher's command line and environment come to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pageport.backends.tgi_adapter.shard import engine_settings
from pageport.backends.tgi_adapter.shard.engine_settings import ServeFlags, read_engine_config
from pageport.backends.tgi_adapter.shard.settings import ShardSettings, read_shard_settings
from pageport.core import ConfigError, EngineConfig, Watermark

# What the launcher sets for every shard; see tests/data/tgi.
LAUNCHER = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "CUDA_MEMORY_FRACTION": "1",
    "CUDA_GRAPHS": "1,2,4,8,16,32",
    "ATTENTION": "flashinfer",
    "PREFIX_CACHING": "true",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    return tmp_path


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_settings, "_GPU_DEVICES", ("/nonexistent",))


def test_what_the_launcher_sets_changes_nothing() -> None:
    assert read_shard_settings("/tmp/x", LAUNCHER, block_size=16) == ShardSettings("/tmp/x")


def test_ranks_limits_and_switches() -> None:
    settings = read_shard_settings(
        "/tmp/x",
        {
            **LAUNCHER,
            "RANK": "3",
            "WORLD_SIZE": "4",
            "REQUEST_LOGPROBS": "1",
            "WATERMARK_GAMMA": "0.4",
            "WATERMARK_DELTA": "1.5",
            "PAGEPORT_OVERCOMMIT": "2.5",
            "PAGEPORT_SUPPORT_CHUNKING": "false",
        },
        block_size=32,
    )
    assert settings == ShardSettings("/tmp/x", 3, 4, 32, False, 2.5, True, Watermark(0.4, 1.5))
    assert settings.socket_path == "/tmp/x-3"


@pytest.mark.parametrize(
    ("environment", "chunking"),
    [
        ({"PREFILL_CHUNKING": "0"}, False),
        ({"PREFILL_CHUNKING": "0", "PAGEPORT_SUPPORT_CHUNKING": "1"}, True),
        ({"PREFILL_CHUNKING": "", "PAGEPORT_SUPPORT_CHUNKING": ""}, True),
    ],
)
def test_our_own_switch_comes_before_tgis(environment: dict[str, str], chunking: bool) -> None:
    assert read_shard_settings("x", environment, block_size=16).support_chunking == chunking


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PAGEPORT_OVERCOMMIT", "0.5", "from 1 to 100 (given: 0.5)"),
        ("PAGEPORT_OVERCOMMIT", "nan", "from 1 to 100 (given: nan)"),
        ("PAGEPORT_OVERCOMMIT", "much", "must be a number (given: 'much')"),
        ("PAGEPORT_SUPPORT_CHUNKING", "maybe", "must be 1, 0, true or false (given: 'maybe')"),
        ("WATERMARK_GAMMA", "1", "between 0 and 1 (given: 1)"),
        ("WATERMARK_DELTA", "inf", "must be finite (given: inf)"),
        ("WORLD_SIZE", "0", "whole number from 1 on (given: 0)"),
        ("RANK", "1", "below WORLD_SIZE, 1 (given: 1)"),
        ("RANK", "0.5", "whole number from 0 on (given: 0.5)"),
        ("WORLD_SIZE", "inf", "whole number from 1 on (given: inf)"),
    ],
)
def test_wrong_variables_are_named(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_shard_settings("x", {name: value}, block_size=16)
    assert str(error.value).startswith(name)
    assert words in str(error.value)


def test_engine_arguments_from_the_environment(model: Path) -> None:
    config = read_engine_config(
        model,
        ServeFlags(dtype="bfloat16"),
        {
            **LAUNCHER,
            "MAX_BATCH_SIZE": "8",
            "PAGEPORT_KV_CACHE_MEMORY_BYTES": "1000000",
            "PAGEPORT_BLOCK_SIZE": "32",
            "PAGEPORT_OMP_WAIT_POLICY": "active",
        },
    )
    assert config == EngineConfig(
        model=model,
        dtype="bfloat16",
        max_num_seqs=8,
        kv_cache_memory_bytes=1000000,
        block_size=32,
        omp_wait_policy="active",
    )


def test_our_own_variables_come_before_the_launcher(model: Path) -> None:
    environment = {"MAX_BATCH_SIZE": "8", "PAGEPORT_MAX_NUM_SEQS": "16", "PAGEPORT_DTYPE": "float32"}
    config = read_engine_config(model, ServeFlags(dtype="bfloat16"), environment)
    assert (config.max_num_seqs, config.dtype) == (16, "float32")


def test_a_variable_that_means_nothing_is_named(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    environment = {"PAGEPORT_KV_MEMORY": "1", "PAGEPORT_OVERCOMMIT": "2", "PAGEPORT_CACHE_DIR": "/x"}
    read_engine_config(model, ServeFlags(), environment)
    assert [record.getMessage() for record in caplog.records] == [
        "PAGEPORT_KV_MEMORY: there is no such engine argument; it is left aside"
    ]


def test_a_wrong_engine_argument_is_named(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_num_seqs: .*'many'"):
        read_engine_config(model, ServeFlags(), {"PAGEPORT_MAX_NUM_SEQS": "many"})


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, 0.9),
        ({"CUDA_MEMORY_FRACTION": "0.5"}, 0.45),
        ({"CUDA_MEMORY_FRACTION": "0.5", "TGI_WIGGLE_ROOM": "0.8"}, 0.4),
        ({"PAGEPORT_GPU_MEMORY_UTILIZATION": "0.2"}, 0.2),
        ({"PAGEPORT_DEVICE": "cpu"}, 0.3),
    ],
)
def test_the_share_of_memory_counts_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, model: Path, environment: dict[str, str], share: float
) -> None:
    monkeypatch.setattr(engine_settings, "_GPU_DEVICES", (str(model / "config.json"),))
    config = read_engine_config(model, ServeFlags(), {**LAUNCHER, **environment})
    assert config.gpu_memory_utilization == pytest.approx(share)


def test_the_share_of_memory_does_not_count_without_a_gpu(model: Path) -> None:
    assert read_engine_config(model, ServeFlags(), LAUNCHER) == EngineConfig(model=model)


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "compressed-tensors"])
def test_quantized_weights_are_refused(model: Path, method: str) -> None:
    (model / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": method}}), "utf-8")
    with pytest.raises(ConfigError, match=f"--quantize: weights quantized by '{method}'"):
        read_engine_config(model, ServeFlags(quantize=method), {})
    with pytest.raises(ConfigError, match=f"--quantize: weights quantized by '{method}'"):
        read_engine_config(model, ServeFlags(), {})


def test_quantizing_while_loading_is_left_aside(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_engine_config(model, ServeFlags(quantize="bitsandbytes-nf4"), {}) == EngineConfig(model=model)
    assert "--quantize bitsandbytes-nf4 is left aside" in caplog.text
    with pytest.raises(ConfigError, match="'gptq'"):
        read_engine_config(model, ServeFlags(quantize="gptq"), {})


@pytest.mark.parametrize(
    ("environment", "flag"),
    [
        ({"ROPE_SCALING": "linear", "ROPE_FACTOR": "2"}, "--rope-scaling"),
        ({"ROPE_SCALING": "dynamic"}, "--rope-scaling"),
        ({"LORA_ADAPTERS": "a=/models/a"}, "--lora-adapters"),
    ],
)
def test_what_would_change_the_answers_is_refused(
    model: Path, environment: dict[str, str], flag: str
) -> None:
    with pytest.raises(ConfigError, match=flag):
        read_engine_config(model, ServeFlags(), environment)


def test_a_rope_factor_of_one_changes_nothing(model: Path) -> None:
    environment = {"ROPE_SCALING": "dynamic", "ROPE_FACTOR": "1"}
    assert read_engine_config(model, ServeFlags(), environment) == EngineConfig(model=model)


def test_what_has_no_effect_is_named(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    flags = ServeFlags(
        speculate=2, kv_cache_dtype="fp8_e5m2", trust_remote_code=True, otlp_endpoint="http://x"
    )
    environment = {"DISABLE_CUSTOM_KERNELS": "True"}
    assert read_engine_config(model, flags, environment) == EngineConfig(model=model)
    named = sorted(record.getMessage().split()[0].rstrip(":") for record in caplog.records)
    assert named == [
        "--disable-custom-kernels",
        "--kv-cache-dtype",
        "--otlp-endpoint",
        "--speculate",
        "--trust-remote-code",
    ]
