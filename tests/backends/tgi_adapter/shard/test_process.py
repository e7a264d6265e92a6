"""The shard as TGI's launcher sees it: a command on PATH, a socket file, log lines, an exit status."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from launched_shard import children, end, serve_arguments, start_server, wait_for_socket
from manual_engine import until
from shard_client import LIVENESS, request

from pageport.backends.tgi_adapter.pb import generate_v3_pb2 as v3
from pageport.backends.tgi_adapter.pb.generate_v3_pb2_grpc import TextGenerationServiceStub

PROMPT = "Deep learning is"
NEW_TOKENS = 40


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        yield TextGenerationServiceStub(channel)  # type: ignore[no-untyped-call]


async def warmed_up(router: Any) -> v3.WarmupResponse:
    await router.ServiceDiscovery(v3.ServiceDiscoveryRequest())
    await router.ClearCache(v3.ClearCacheRequest())
    texts = [request(0, "_test " * 64, truncate=64, max_new_tokens=1) for _ in range(2)]
    answer: v3.WarmupResponse = await router.Warmup(
        v3.WarmupRequest(batch=v3.Batch(requests=texts, size=2), max_prefill_tokens=1024)
    )
    return answer


async def generated(router: Any, batch_id: int, after: int = 10**9, do: Any = None) -> str:
    """An answer, token by token; after so many tokens something is done."""
    text, received = "", 0
    answer = await router.Prefill(
        v3.PrefillRequest(
            batch=v3.Batch(id=batch_id, requests=[request(batch_id, PROMPT, max_new_tokens=NEW_TOKENS)])
        )
    )
    while True:
        for generation in answer.generations:
            text += "".join(generation.tokens.texts)
            received += len(generation.tokens.ids)
        if not answer.HasField("batch"):
            assert answer.generations[-1].generated_text.text == text
            assert received == NEW_TOKENS
            return text
        if received >= after and do is not None:
            do()
            do = None
        answer = await router.Decode(v3.DecodeRequest(batches=[answer.batch]))


async def test_a_shard_outlives_its_engine(demo_model: Path, tmp_path: Path) -> None:
    server = start_server(tmp_path, *serve_arguments(demo_model, tmp_path / "tgi"))
    socket = tmp_path / "tgi-0"
    try:
        wait_for_socket(server, socket)
        (engine,) = children(server)
        async with connected(socket) as router:
            info = await router.Info(v3.InfoRequest())
            assert (info.block_size, info.requires_padding, info.use_prefix_caching) == (16, False, False)
            limits = await warmed_up(router)
            assert limits.max_total_tokens == limits.max_input_tokens + 1
            assert limits.max_supported_total_tokens >= limits.max_total_tokens
            undisturbed = await generated(router, 0)
            text = await generated(router, 1, after=5, do=lambda: engine.send_signal(signal.SIGKILL))
            assert text == undisturbed
            assert [child.pid for child in children(server)] != [engine.pid]
            await router.Health(v3.HealthRequest())
            probe = v3.Batch(
                id=LIVENESS, requests=[request(LIVENESS, "liveness", truncate=1, max_new_tokens=1)]
            )
            answer = await router.Prefill(v3.PrefillRequest(batch=probe))
            assert answer.generations[0].request_id == LIVENESS
        remaining = children(server)
        server.send_signal(signal.SIGTERM)
        status, lines, errors = end(server)
        assert status == 0, errors
        assert not socket.exists()
        assert not any(child.is_running() for child in remaining)
        assert lines
        assert {line["record"]["level"]["name"] for line in lines} <= {"INFO", "WARNING", "ERROR"}
        assert any("killed by SIGKILL" in line["text"] for line in lines)
    finally:
        server.kill()
        server.communicate()


def test_download_weights_of_a_folder(demo_model: Path, tmp_path: Path) -> None:
    flags = ["--extension", ".safetensors", "--logger-level", "INFO", "--json-output", "--merge-lora"]
    server = start_server(tmp_path, "download-weights", str(demo_model), *flags, "--revision", "main")
    status, (line,), errors = end(server)
    assert (status, errors) == (0, "")
    assert line["text"] == f"the weights are at {demo_model}\n"
    assert line["record"]["level"]["name"] == "INFO"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "there is no model at"),
        ({"PAGEPORT_OVERCOMMIT": "0"}, "PAGEPORT_OVERCOMMIT: must be from 1 to 100 (given: 0)"),
        ({"LORA_ADAPTERS": "a=b"}, "--lora-adapters"),
    ],
)
def test_what_keeps_it_from_serving_is_on_standard_error(
    tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    model = tmp_path / "model"
    if environment:
        model.mkdir()
    server = start_server(tmp_path, *serve_arguments(model, tmp_path / "tgi"), environment=environment)
    status, _, errors = end(server)
    assert status == 1
    assert errors.startswith("pageport: ")
    assert words in errors or (not environment and "--model-id" in errors)
    assert "Traceback" not in errors
    assert not (tmp_path / "tgi-0").exists()


def test_a_broken_model_ends_it_with_the_reason(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", "utf-8")
    server = start_server(tmp_path, *serve_arguments(model, tmp_path / "tgi"))
    status, _, errors = end(server)
    assert status == 1
    assert "pageport: " in errors
    assert str(model) in errors
    assert [path.name for path in tmp_path.iterdir() if path.is_socket()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_it_loads_ends_it(
    demo_model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    server = start_server(tmp_path, *serve_arguments(demo_model, tmp_path / "tgi"))
    try:
        await until(lambda: bool(children(server)))
        loading = children(server)
        os.kill(server.pid, number)
        status, _, errors = end(server)
        assert status == 0, errors
        assert not (tmp_path / "tgi-0").exists()
        assert psutil.wait_procs(loading, timeout=20)[1] == []
    finally:
        server.kill()
        server.communicate()
