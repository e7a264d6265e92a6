"""`/metrics`: TGI's names, kinds, labels and buckets, and what the figures say of the traffic before."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from router_harness import recorded_settings, running_router
from scripted_engine import Script, ScriptedEngine
from tokenizers import Tokenizer
from transcript import DATA

RECORDED: dict[str, Any] = json.loads((DATA / "metrics.jsonl").read_text())


@pytest.fixture
async def page(tokenizer: Tokenizer, demo_model: Path) -> str:
    """After two answers, two refusals and a failure of the engine."""
    async with running_router(recorded_settings(), tokenizer, demo_model) as (client, engine):
        await traffic(client, engine)
        response = await client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    return response.text


async def traffic(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    for path in ("/generate", "/generate_stream"):
        await client.post(
            path, json={"inputs": "What is Deep Learning?", "parameters": {"max_new_tokens": 4}}
        )
    for parameters in ({"top_k": 0}, {"max_new_tokens": 0}):
        await client.post("/generate", json={"inputs": "Hi", "parameters": parameters})
    with engine.playing(Script(prefill_error="out of blocks")):
        await client.post("/generate", json={"inputs": "Hi"})


def samples(page: str) -> dict[str, float]:
    """By name with labels, as the page has it."""
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_families_are_those_of_tgi(page: str) -> None:
    types = dict(re.findall(r"^# TYPE (tgi_\S+) (\S+)$", page, re.MULTILINE))
    assert types == RECORDED["types"]


def test_labels_are_those_of_tgi(page: str) -> None:
    labels: dict[str, set[str]] = {}
    for name in samples(page):
        base, _, rest = name.partition("{")
        labels.setdefault(base, set()).update(re.findall(r'(\w+)="', rest))
    for name, wanted in RECORDED["labels"].items():
        if name != "tgi_request_skipped_tokens":  # quantiles of zeros
            assert labels[name] == set(wanted), name


def test_buckets_are_those_of_tgi(page: str) -> None:
    for name, wanted in RECORDED["buckets"].items():
        bounds = dict.fromkeys(re.findall(rf'^{name}_bucket{{.*?le="(.*?)"', page, re.MULTILINE))
        cut = wanted.index("…")
        given = list(bounds)
        assert len(given) == wanted[cut + 1], name
        assert given[:cut] == wanted[:cut], name
        assert given[-3:] == wanted[-3:], name


def test_figures(page: str) -> None:
    found = samples(page)
    assert found["tgi_request_count"] == 5
    assert found["tgi_request_success"] == 2
    assert found['tgi_request_failure{err="validation"}'] == 2
    assert found['tgi_request_failure{err="generation"}'] == 1
    assert found['tgi_batch_inference_count{method="prefill"}'] == 3
    assert found['tgi_batch_inference_failure{method="prefill"}'] == 1
    assert found['tgi_batch_inference_success{method="decode"}'] == 6
    assert found["tgi_request_input_length_sum"] == 5 + 5 + 1
    assert found["tgi_request_generated_tokens_sum"] == 8
    assert found["tgi_request_max_new_tokens_sum"] == 4 + 4 + 1023
    assert found["tgi_queue_size"] == 0
    assert found["pageport_generation_tokens_total"] == 8
    assert found["pageport_requests_running"] == 0
    assert found["pageport_time_to_first_token_seconds_count"] == 2
    assert found["pageport_inter_token_latency_seconds_count"] == 6


def test_a_client_library_can_read_it(page: str) -> None:
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert families["tgi_request_duration"].type == "histogram"
    assert families["pageport_generation_tokens"].type == "counter"


async def test_best_of_is_one_request_with_two_answers(tokenizer: Tokenizer, demo_model: Path) -> None:
    parameters = {"max_new_tokens": 4, "best_of": 2, "do_sample": True}
    async with running_router(recorded_settings(), tokenizer, demo_model) as (client, _):
        await client.post("/generate", json={"inputs": "Hi", "parameters": parameters})
        found = samples((await client.get("/metrics")).text)
    assert (found["tgi_request_count"], found["tgi_request_success"]) == (1, 1)
    assert found["tgi_request_generated_tokens_sum"] == 4
    assert found['tgi_batch_inference_success{method="prefill"}'] == 2


async def test_nothing_has_happened_yet(tokenizer: Tokenizer, demo_model: Path) -> None:
    async with running_router(recorded_settings(), tokenizer, demo_model) as (client, _):
        page = (await client.get("/metrics")).text
    assert "tgi_request" not in page
    assert "pageport_kv_blocks_total" in page
