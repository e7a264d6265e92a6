"""What the flags of TGI's launcher and router become with the embedded router: nothing is left aside silently."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import pageport.core
from pageport.backends.tgi_adapter.router import server
from pageport.backends.tgi_adapter.router.settings import RouterSettings
from pageport.cli.tgi import tgi
from pageport.cli.tgi_environment import log_level
from pageport.cli.tgi_launcher_flags import LAUNCHER_FLAGS, ROUTER_FLAGS, Flag
from pageport.core import EngineConfig, EngineInfo

START_UPS = Path(__file__).parents[1] / "data" / "tgi" / "rpc" / "start-up.jsonl"
INFO = EngineInfo(
    max_model_len=8192,
    kv_token_capacity=16384,
    vocab_size=49152,
    max_num_seqs=64,
    dtype="float32",
    device="cpu",
    kernels="cpu",
    eos_token_ids=(2,),
)


@dataclass
class Served:
    """What would have been served: `info` is that of the engine."""

    settings: RouterSettings | None = None
    engine: EngineConfig | None = None


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    """Nothing is started: the router's settings are checked against an engine, and kept."""
    kept = Served()

    def keep_engine(config: EngineConfig) -> EngineConfig:
        kept.engine = config
        return config

    def keep_settings(settings: RouterSettings, engine: Any, model: Path) -> int:
        kept.settings = settings.resolved(INFO)
        return 0

    monkeypatch.setattr(pageport.core, "EngineClient", keep_engine)
    monkeypatch.setattr(server, "serve", keep_settings)
    monkeypatch.setattr("pageport.backends.tgi_adapter.shard.engine_settings._GPU_DEVICES", ())
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    for name in [name for name in os.environ if name.startswith("PAGEPORT_")]:
        monkeypatch.delenv(name)
    return kept


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A folder that nobody looks into, because no engine is started."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


def launch(model: str, *arguments: str, **environment: str | None) -> Result:
    runner = CliRunner(env={"PATH": "/usr/bin:/bin", "PAGEPORT": None, "HOSTNAME": None, **environment})
    return runner.invoke(tgi, ["launcher", "--model-id", model, *arguments])


def route(model: str, *arguments: str) -> Result:
    runner = CliRunner(env={"PATH": "/usr/bin:/bin", "HOSTNAME": None})
    return runner.invoke(tgi, ["router", "--tokenizer-name", model, *arguments])


def warnings(result: Result) -> list[str]:
    return [line for line in result.stdout.splitlines() if " WARN " in line]


# -- every flag ----------------------------------------------------------------------------------------------


def another_value(flag: Flag) -> list[str]:
    """Arguments that set a flag to something that it is not without them."""
    if flag.type is bool:
        return [flag.option]
    if isinstance(flag.type, click.Choice):
        return [flag.option, next(choice for choice in flag.type.choices if choice != flag.default)]
    if flag.type is click.BOOL:
        return [flag.option, "true"]
    if isinstance(flag.type, click.FloatRange):
        return [flag.option, "0.3"]
    if isinstance(flag.type, click.IntRange) or flag.type is float:
        return [flag.option, "17"]
    return [flag.option, "1.2.3.4" if flag.name == "hostname" else "something"]


@pytest.mark.parametrize(
    "flag", [flag for flag in LAUNCHER_FLAGS if flag.name != "model_id"], ids=lambda flag: flag.name
)
def test_each_flag_does_something_or_is_named_or_refused(
    flag: Flag, served: Served, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "before")
    assert launch(model).exit_code == 0
    before = replace(served)
    result = launch(model, *another_value(flag))
    if result.exit_code != 0:
        assert result.exit_code == 1
        assert flag.option in str(result.exception)
        return
    changed = (served.settings, served.engine) != (before.settings, before.engine)
    named = any(flag.option in line for line in warnings(result))
    by_other_means = {
        "huggingface_hub_cache": os.environ["HF_HUB_CACHE"] == "something",
        "env": "machine:" in result.stdout,
        "usage_stats": True,  # never anything is sent
        "rope_scaling": True,  # by 1, as long as no factor is given
    }
    assert changed or named or by_other_means.get(flag.name, False)


def test_what_has_no_effect_is_one_line(served: Served, model: str) -> None:
    result = launch(model, "--cuda-graphs", "0", "--waiting-served-ratio", "1.2", MAX_WAITING_TOKENS="9")
    assert [line.partition("pageport.tgi: ")[2] for line in warnings(result)] == [
        "without effect with the embedded router: --waiting-served-ratio, --max-waiting-tokens, --cuda-graphs"
    ]
    assert warnings(launch(model)) == []


def test_the_log_says_what_was_given_but_no_secret(served: Served, model: str) -> None:
    result = launch(model, "--api-key", "hidden", "--port", "81")
    (line,) = [line for line in result.stdout.splitlines() if "started with" in line]
    assert "port=81" in line
    assert "api_key='***'" in line
    assert "hidden" not in result.stdout
    assert "payload_limit" not in line


def test_all_of_the_log_is_json_where_it_is_asked_for(served: Served, model: str) -> None:
    result = launch(model, "--json-output", "--env", "--cuda-graphs", "0")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["level"] for line in lines} == {"INFO", "WARN"}


# -- what they become ----------------------------------------------------------------------------------------


def test_limits_are_the_engines_where_none_are_given(served: Served, model: str) -> None:
    assert launch(model).exit_code == 0
    assert served.settings is not None and served.engine is not None
    assert (served.settings.max_input_tokens, served.settings.max_total_tokens) == (8191, 8192)
    assert served.engine.max_num_batched_tokens == 512
    assert launch(model, "--max-input-length", "100", MAX_TOTAL_TOKENS="200").exit_code == 0
    assert (served.settings.max_input_tokens, served.settings.max_total_tokens) == (100, 200)


@pytest.mark.parametrize(("given", "step"), [("4096", 512), ("100", 100)])
def test_a_prefill_budget_is_an_upper_limit_of_a_step(
    given: str, step: int, served: Served, model: str
) -> None:
    assert launch(model, "--max-batch-prefill-tokens", given).exit_code == 0
    assert served.engine is not None and served.engine.max_num_batched_tokens == step
    own = launch(model, "--max-batch-prefill-tokens", given, "--max-num-batched-tokens", "2048")
    assert own.exit_code == 0
    assert served.engine.max_num_batched_tokens == 2048


def test_engine_arguments_are_flags_and_variables(served: Served, model: str) -> None:
    result = launch(model, "--block-size", "32", "--max-batch-size", "5", PAGEPORT_SEED="7")
    assert result.exit_code == 0
    engine = served.engine
    assert engine is not None
    assert (engine.block_size, engine.max_num_seqs, engine.seed) == (32, 5, 7)


@pytest.mark.parametrize(
    ("arguments", "variable", "address"),
    [
        ([], None, "0.0.0.0"),
        ([], "d3adbeef0123", "0.0.0.0"),  # how a container calls itself
        ([], "127.0.0.1", "127.0.0.1"),
        ([], "::1", "::1"),
        (["--hostname", "localhost"], "d3adbeef0123", "localhost"),
    ],
)
def test_a_containers_name_is_no_address(
    arguments: list[str], variable: str | None, address: str, served: Served, model: str
) -> None:
    result = launch(model, *arguments, HOSTNAME=variable)
    assert served.settings is not None and served.settings.hostname == address
    assert bool(warnings(result)) == (variable == "d3adbeef0123" and not arguments)


def test_a_variable_called_env_is_somebody_elses(served: Served, model: str) -> None:
    assert launch(model, ENV="production").exit_code == 0


def test_another_tokenizer_configuration_reaches_the_router(served: Served, model: str) -> None:
    path = Path(model) / "config.json"
    assert launch(model, "--tokenizer-config-path", str(path)).exit_code == 0
    assert served.settings is not None and served.settings.tokenizer_config_path == path


def test_a_scaling_without_a_factor_scales_nothing(served: Served, model: str) -> None:
    assert launch(model, "--rope-scaling", "dynamic").exit_code == 0
    assert launch(model, "--rope-factor", "1").exit_code == 0
    assert "linear by 2" in str(launch(model, "--rope-factor", "2").exception)


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (None, "info"), ("", "info"), ("nonsense", "info"),
        ("warn", "warning"), ("TRACE", "debug"), ("off", "critical"),
        ("text_generation_launcher=warn", "info"), ("text_generation_router=debug", "debug"),
        ("error,text_generation_router=info", "info"), ("error,hyper=trace", "error"),
    ],
)  # fmt: skip
def test_levels_of_the_log_are_read_as_tgi_reads_them(text: str | None, level: str) -> None:
    assert log_level(text) == level


# -- the router alone ----------------------------------------------------------------------------------------

# A shard that answers oddly is nothing that can happen where the engine is in the router.
ODD_SHARDS = {
    "shard answers another input limit", "shard answers another total limit", "supported below total",
    "supported below the prefill budget", "input equals total", "input above the budget, no chunking",
}  # fmt: skip
CASES = [
    case
    for case in map(json.loads, START_UPS.read_text("utf-8").splitlines())
    if not case["v2"] and case["name"] not in ODD_SHARDS
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_router_starts_or_ends_as_tgis_with_the_same_flags(
    case: dict[str, Any], served: Served, model: str
) -> None:
    assert route(model, *case["flags"]).exit_code == (case["exit"] or 0)
    if case["exit"] is None:
        settings = served.settings
        assert settings is not None
        if "--max-total-tokens" in case["flags"]:
            assert [settings.max_input_tokens, settings.max_total_tokens] == case["limits"]


def test_the_routers_own_defaults(served: Served, model: str) -> None:
    defaults = {flag.name: flag.default for flag in ROUTER_FLAGS}
    assert (defaults["waiting_served_ratio"], defaults["max_batch_prefill_tokens"]) == (1.2, 4096)
    assert route(model).exit_code == 0
    assert served.engine is not None and served.engine.max_num_batched_tokens == 512


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-total-tokens", "9000"], "9000 is more than the engine holds, 8192"),
        (["--max-input-tokens", "600", "--max-total-tokens", "600"], "below --max-total-tokens, 600"),
        (["--master-shard-uds-path", "/tmp/x-0"], "--master-shard-uds-path: not supported"),
        (["--tokenizer-name", ""], "--tokenizer-name: is required"),
    ],
)
def test_what_the_router_refuses(arguments: list[str], words: str, served: Served, model: str) -> None:
    result = route(model, *arguments)
    assert result.exit_code == 1
    assert words in str(result.exception)
