"""`pageport tgi launcher`: TGI's flags and environment, refusals, and what TGI's own launcher is started with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pageport.cli.tgi import tgi
from pageport.cli.tgi_launcher import launcher
from pageport.cli.tgi_launcher_flags import FLAGS

# What TGI's launcher printed of its arguments, started with just a model, host, port and log format.
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "tgi" / "launcher-defaults.json").read_text())
GIVEN = {"model_id", "hostname", "port", "prometheus_port", "shard_uds_path", "json_output", "usage_stats"}


def rust(value: object) -> str:
    """A default as Rust prints it."""
    if value is None:
        return "None"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_every_flag_of_tgi_is_there_with_its_default() -> None:
    assert [flag.name for flag in FLAGS] == list(RECORDED)
    for flag in FLAGS:
        if flag.name == "cors_allow_origin":
            assert RECORDED[flag.name] == "[]"
        elif flag.name not in GIVEN:
            assert rust(flag.default) == RECORDED[flag.name], flag.name


def test_every_flag_has_its_environment_form() -> None:
    options = {option.name: option for option in launcher.params if isinstance(option, click.Option)}
    assert {options[flag.name].envvar for flag in FLAGS} == {flag.name.upper() for flag in FLAGS}


def run(*arguments: str, **environment: str):
    """The launcher in this process, without TGI's binaries on PATH."""
    runner = CliRunner(env={"PATH": "/usr/bin:/bin", "PAGEPORT": None, "MODEL_ID": None, **environment})
    return runner.invoke(tgi, ["launcher", *arguments])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--model-id: is required"),
        (["--model-id", "demo", "--validation-workers", "0"], "--validation-workers: must be above 0"),
        (
            ["--model-id", "demo", "--max-input-tokens", "5", "--max-total-tokens", "5"],
            r"below .*5 \(given: 5\)",
        ),
        (["--model-id", "demo", "--max-input-tokens", "5", "--max-input-length", "5"], "one of the two"),
        (["--model-id", "demo", "--max-total-tokens", "9", "--max-batch-total-tokens", "8"], "at most .*8"),
        (["--model-id", "demo", "--router", "rust"], "text-generation-launcher .* must be on PATH"),
        (["--model-id", "demo", "--backend", "text-generation-server"], "must be on PATH"),
        (["--model-id", "demo", "--num-shard", "2"], "several ranks"),
        (["--model-id", "demo", "--ngrok"], "--ngrok: is not supported"),
        (["--model-id", "demo", "--lora-adapters", "a=b"], "--lora-adapters"),
        (["--model-id", "demo", "--quantize", "gptq"], "--quantize"),
        (["--model-id", "demo", "--rope-scaling", "linear", "--rope-factor", "2"], "--rope-scaling"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_said(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exception is not None
    assert result.exit_code == 1
    assert re.search(words, str(result.exception)), str(result.exception)


@pytest.mark.parametrize(
    "arguments", [["--max-best-of", "x"], ["--nope"], ["--quantize", "nope"], ["--port", "70000"]]
)
def test_a_wrong_flag_is_wrong_usage(arguments: list[str]) -> None:
    assert run("--model-id", "demo", *arguments).exit_code == 2


def test_the_way_back_is_one_variable() -> None:
    assert "--backend 0" in str(run("--model-id", "demo", PAGEPORT="0").exception)


STAND_IN = """#!{python}
import json, os, shutil, sys
names = ("PAGEPORT", "PAGEPORT_BLOCK_SIZE", "PAGEPORT_DTYPE", "MAX_TOTAL_TOKENS")
seen = {{name: os.environ.get(name) for name in names}}
print(json.dumps([sys.argv[1:], seen, shutil.which("text-generation-server")]))
"""


def start_stand_in(tmp_path: Path, *arguments: str, **environment: str):
    """What TGI's launcher would be started with; a stand-in, because the real one is not on every machine."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name in ("text-generation-launcher", "text-generation-router"):
        (binaries / name).write_text(STAND_IN.format(python=sys.executable))
        (binaries / name).chmod(0o755)
    command = [Path(sys.executable).with_name("pageport"), "tgi", "launcher", "--model-id", "m", *arguments]
    variables = {
        **os.environ,
        "PATH": f"{binaries}:/usr/bin:/bin",
        "XDG_DATA_HOME": str(tmp_path / "data"),
        **environment,
    }
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_tgis_own_launcher_gets_its_flags_and_finds_our_server_first(tmp_path: Path) -> None:
    arguments, variables, server = start_stand_in(
        tmp_path, "--max-total-tokens", "600", "--json-output", "--sharded", "false", "--cors-allow-origin", "a",
        "--cors-allow-origin", "b", "--block-size", "32", "--dtype", "float32",
    )  # fmt: skip
    assert arguments == [
        "--model-id", "m", "--sharded", "false", "--max-total-tokens", "600", "--json-output",
        "--cors-allow-origin", "a", "--cors-allow-origin", "b",
    ]  # fmt: skip
    assert (variables["PAGEPORT"], variables["PAGEPORT_BLOCK_SIZE"], variables["PAGEPORT_DTYPE"]) == (
        "1",
        "32",
        "float32",
    )
    assert Path(server).parent == tmp_path / "data" / "pageport" / "tgi-shim"


def test_variables_reach_it_as_they_are_and_the_original_server_can_be_chosen(tmp_path: Path) -> None:
    arguments, variables, _ = start_stand_in(
        tmp_path, "--backend", "text-generation-server", MAX_TOTAL_TOKENS="700"
    )
    assert arguments == ["--model-id", "m"]
    assert (variables["PAGEPORT"], variables["MAX_TOTAL_TOKENS"]) == ("0", "700")


def test_shim_dir_prints_the_folder(tmp_path: Path) -> None:
    result = CliRunner().invoke(tgi, ["shim-dir", str(tmp_path / "shim")])
    assert result.output.strip() == str(tmp_path / "shim")
    assert os.access(tmp_path / "shim" / "text-generation-server", os.X_OK)
