"""Starting and stopping the embedded server: what cannot start says why, and what stops leaves nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from triton_harness import write_tokenizer

from pageport.backends.triton_python.contract import ContractName
from pageport.backends.triton_python.repository import Layout, write_entry
from pageport.backends.triton_python.server import SHARED_MEMORY, Ports, ServerError, TritonServer
from pageport.cli.triton import triton
from pageport.core import ConfigError

PAGEPORT = str(Path(sys.executable).with_name("pageport"))


def write_repository(root: Path, **parameters: str) -> Path:
    repository = root / "models"
    settings = {"engine_client": "fake_engine:FakeEngineClient", **parameters}
    model = str(write_tokenizer(root / "tokenizer"))
    entry = write_entry(repository, "m", model, ContractName.VLLM, parameters=settings)
    (entry / "1" / "fake_engine.py").write_bytes(Path(__file__).with_name("fake_engine.py").read_bytes())
    return repository


def segments() -> set[str]:
    return {path.name for path in SHARED_MEMORY.glob(f"pageport_{os.getpid()}_*")}


@pytest.mark.server
def test_a_model_that_does_not_load_is_explained_and_nothing_stays(tmp_path: Path) -> None:
    server = TritonServer(write_repository(tmp_path, tensor_parallel_size="2"), ready_timeout=60.0)
    before = segments()
    with pytest.raises(ServerError, match="tensor_parallel_size: '2' is not supported; possible: 1"):
        server.start()
    assert not [process for process in psutil.Process().children() if process.pid == server.pid]
    assert segments() <= before


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=rf"grpc port {port} on 127\.0\.0\.1: Address already in use"):
            Ports(grpc=port).resolve("127.0.0.1")
    with pytest.raises(ServerError, match="no model repository"):
        TritonServer(tmp_path / "nowhere").start()


def test_free_ports_differ() -> None:
    ports = Ports().resolve("127.0.0.1")
    assert len({ports.http, ports.grpc, ports.metrics}) == 3


@pytest.mark.server
def test_serve_prints_its_addresses_and_ends_on_sigterm_with_all_its_processes(tmp_path: Path) -> None:
    arguments = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    arguments += ["--log-file", str(tmp_path / "log")]
    command = [PAGEPORT, "triton", "serve", str(write_repository(tmp_path)), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serve:
        assert serve.stdout is not None
        line = serve.stdout.readline()
        children = psutil.Process(serve.pid).children(recursive=True)
        serve.send_signal(signal.SIGTERM)
        rest = serve.stdout.read()
        assert serve.wait(30.0) == 0
    assert re.fullmatch(
        r"ready: http 127\.0\.0\.1:\d+, grpc 127\.0\.0\.1:\d+, metrics http://\S+/metrics\n", line
    )
    assert rest == "stopped\n"
    assert {child.name() for child in children if child.is_running()} == set()
    assert len(children) >= 2, "the server and its stub"
    assert not list(SHARED_MEMORY.glob(f"pageport_{serve.pid}_*"))
    assert "successfully loaded 'm'" in (tmp_path / "log").read_text()


def test_entries_of_a_repository(tmp_path: Path) -> None:
    model = str(write_tokenizer(tmp_path / "tokenizer"))
    engine = {"max_num_seqs": "8", "dtype": "float32"}
    entry = write_entry(tmp_path / "r", "chat", model, ContractName.VLLM, engine=engine)
    assert sorted(path.name for path in (entry / "1").iterdir()) == ["model.json", "model.py"]
    assert 'backend: "python"' in (entry / "config.pbtxt").read_text()
    assert '"max_num_seqs": 8' in (entry / "1" / "model.json").read_text()
    bare = write_entry(tmp_path / "r", "plain", model, ContractName.HF, layout=Layout.BACKEND)
    assert [path.name for path in (bare / "1").iterdir()] == ["model.json"]
    assert 'backend: "pageport"' in (bare / "config.pbtxt").read_text()


def test_init_on_the_command_line(tmp_path: Path) -> None:
    model = str(write_tokenizer(tmp_path / "tokenizer"))
    arguments = [
        "init",
        str(tmp_path / "r"),
        "--model",
        model,
        "--contract",
        "hf",
        "--max-output-length",
        "40",
    ]
    result = CliRunner().invoke(triton, [*arguments, "--block-size", "8"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "max_output_length" in (tmp_path / "r" / "hf" / "config.pbtxt").read_text()
    settings = json.loads((tmp_path / "r" / "hf" / "1" / "model.json").read_text())
    assert settings == {"model": model, "block_size": 8}


@pytest.mark.parametrize(
    ("name", "engine", "message"),
    [
        ("chat", {}, "there is an entry at"),
        ("../up", {}, "name: must be"),
        ("new", {"max_num_seqs": "0"}, "max_num_seqs"),
        ("new", {"max_num_seq": "8"}, "max_num_seq"),
    ],
)
def test_wrong_entries_are_refused_before_anything_is_written(
    tmp_path: Path, name: str, engine: dict[str, str], message: str
) -> None:
    model = str(write_tokenizer(tmp_path / "tokenizer"))
    write_entry(tmp_path / "r", "chat", model, ContractName.VLLM)
    with pytest.raises(ConfigError, match=message):
        write_entry(tmp_path / "r", name, model, ContractName.VLLM, engine=engine)
    assert [path.name for path in (tmp_path / "r").iterdir()] == ["chat"]
