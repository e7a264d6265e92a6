"""`pageport tgi launcher`: TGI's flags and environment, refusals, and what TGI's own launcher is started with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pageport.cli.tgi import tgi
from pageport.cli.tgi_launcher import launcher
from pageport.cli.tgi_launcher_flags import LAUNCHER_FLAGS

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "tgi" / "launcher-args.jsonl").read_text().splitlines()
]
# Every recorded launcher was given these, so that their defaults are not in the recordings.
ALWAYS_GIVEN = {
    "model_id",
    "hostname",
    "port",
    "prometheus_port",
    "shard_uds_path",
    "json_output",
    "usage_stats",
}


def as_recorded(value: Any) -> Any:
    """A value as the recordings have it: names of choices without dashes, lists as lists."""
    if isinstance(value, tuple):
        return list(value)
    return re.sub("[-_]", "", value) if isinstance(value, str) else value


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: " ".join(case["flags"][2:])[:40])
def test_flags_and_defaults_are_tgis(case: dict[str, Any]) -> None:
    values = launcher.make_context("launcher", list(case["flags"])).params
    assert {flag.name for flag in LAUNCHER_FLAGS} == set(case["arguments"]) | ALWAYS_GIVEN
    for name, recorded in case["arguments"].items():
        given = (
            [int(size) for size in values[name].split(",")]
            if recorded and name == "cuda_graphs"
            else values[name]
        )
        assert as_recorded(given) == as_recorded(recorded), name


def test_every_flag_but_env_has_its_environment_form() -> None:
    """ENV is a variable that many a shell and container has for something else."""
    options = {option.name: option for option in launcher.params if isinstance(option, click.Option)}
    for flag in LAUNCHER_FLAGS:
        assert options[flag.name].envvar == (None if flag.name == "env" else flag.name.upper())
    context = launcher.make_context("launcher", ["-p", "81", "-g", "7", "-e"])
    assert (context.params["port"], context.params["graceful_termination_timeout"]) == (81, 7)
    assert context.params["env"] is True


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
        (["--model-id", "demo", "--ngrok"], "--ngrok: not supported"),
        (["--model-id", "demo", "--weights-cache-override", "x"], "--weights-cache-override: not supported"),
        (
            ["--model-id", "demo", "--tokenizer-config-path", "nope"],
            "--tokenizer-config-path: there is no file",
        ),
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
    "arguments",
    [["--max-best-of", "x"], ["--nope"], ["--quantize", "nope"], ["--port", "70000"], ["--backend", "tgi"]],
)
def test_a_wrong_flag_is_wrong_usage(arguments: list[str]) -> None:
    assert run("--model-id", "demo", *arguments).exit_code == 2


@pytest.mark.parametrize("value", ["0", "False", "text-generation-server"])
def test_the_way_back_is_one_variable(value: str) -> None:
    assert "the original server runs under" in str(run("--model-id", "demo", PAGEPORT=value).exception)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--model-id", "m", "--max-best-of", "x"], 2, "--max-best-of"),
        (["--model-id", "m", "--validation-workers", "0"], 1, "pageport: --validation-workers"),
        (["--model-id", "/nowhere"], 1, "pageport: --model-id: '/nowhere'"),
    ],
)
def test_a_process_that_cannot_serve_ends_with_its_status(
    arguments: list[str], status: int, words: str
) -> None:
    command = [
        Path(sys.executable).with_name("pageport"),
        "tgi",
        "launcher",
        "--router",
        "embedded",
        *arguments,
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


STAND_IN = """#!{python}
import json, os, shutil, subprocess, sys
names = ("PAGEPORT", "PAGEPORT_BLOCK_SIZE", "PAGEPORT_DTYPE", "MAX_TOTAL_TOKENS", "DTYPE")
seen = {{name: os.environ.get(name) for name in names}}
server = shutil.which("text-generation-server")
says = subprocess.run([server, "--help"], capture_output=True, text=True).stdout
print(json.dumps([sys.argv[1:], seen, server, says]))
"""
ORIGINAL_SAYS = "the original server"


@dataclass(frozen=True)
class Started:
    """How TGI's launcher was started: its arguments, some variables, the server on its PATH and what that says."""

    arguments: list[str]
    variables: dict[str, str | None]
    server: str
    says: str


def start_stand_in(tmp_path: Path, *arguments: str, **environment: str) -> Callable[[], Started]:
    """Starts `pageport tgi launcher` where a stand-in for TGI's is on PATH: the real one is not on every machine."""
    binaries = tmp_path / "bin"
    binaries.mkdir(exist_ok=True)
    for name in ("text-generation-launcher", "text-generation-router"):
        write_command(binaries / name, STAND_IN.format(python=sys.executable))
    write_command(binaries / "text-generation-server", f"#!/bin/sh\necho {ORIGINAL_SAYS}\n")
    command = [Path(sys.executable).with_name("pageport"), "tgi", "launcher", "--model-id", "m", *arguments]
    variables = {
        **os.environ,
        "PATH": f"{binaries}:/usr/bin:/bin",
        "XDG_DATA_HOME": str(tmp_path / "data"),
        **environment,
    }
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)

    def finished() -> Started:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return Started(*json.loads(output))

    return finished


def write_command(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_tgis_own_launcher_gets_its_flags_and_finds_our_server_first(tmp_path: Path) -> None:
    started = start_stand_in(
        tmp_path, "--max-total-tokens", "600", "--json-output", "--sharded", "false", "--cors-allow-origin", "a",
        "--cors-allow-origin", "b", "--block-size", "32", "--dtype", "float32",
    )()  # fmt: skip
    assert started.arguments == [
        "--model-id", "m", "--sharded", "false", "--max-total-tokens", "600", "--json-output",
        "--cors-allow-origin", "a", "--cors-allow-origin", "b",
    ]  # fmt: skip
    variables = started.variables
    assert variables["PAGEPORT"] == "1"
    assert (variables["PAGEPORT_BLOCK_SIZE"], variables["PAGEPORT_DTYPE"]) == ("32", "float32")
    assert Path(started.server).parent == tmp_path / "data" / "pageport" / "tgi-shim"


def test_variables_reach_it_as_they_are(tmp_path: Path) -> None:
    started = start_stand_in(tmp_path, MAX_TOTAL_TOKENS="700", DTYPE="float32")()
    assert started.arguments == ["--model-id", "m"]
    assert started.variables["MAX_TOTAL_TOKENS"] == "700"
    # TGI's launcher would refuse a type that only our engine knows.
    assert (started.variables["DTYPE"], started.variables["PAGEPORT_DTYPE"]) == (None, "float32")


def test_both_servers_run_side_by_side_each_by_its_own_choice(tmp_path: Path) -> None:
    ours = start_stand_in(tmp_path)
    theirs = start_stand_in(tmp_path, "--backend", "text-generation-server")
    theirs_too = start_stand_in(tmp_path, PAGEPORT="0")
    assert "download-weights" in ours().says
    for started in (theirs(), theirs_too()):
        assert started.says.strip() == ORIGINAL_SAYS
        assert started.variables["PAGEPORT"] == "0"


def test_shim_dir_prints_the_folder(tmp_path: Path) -> None:
    result = CliRunner().invoke(tgi, ["shim-dir", str(tmp_path / "shim")])
    assert result.output.strip() == str(tmp_path / "shim")
    assert os.access(tmp_path / "shim" / "text-generation-server", os.X_OK)
