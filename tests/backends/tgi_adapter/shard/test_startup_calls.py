"""What a router calls before it serves: ServiceDiscovery, Info, Warmup; and Health at any time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from manual_engine import END, ManualEngine, byte_tokenizer, until
from shard_client import LIVENESS, Shard, refused, request, running_shard

from pageport.backends.tgi_adapter.pb import generate_v2_pb2 as v2
from pageport.backends.tgi_adapter.pb import generate_v3_pb2 as v3
from pageport.backends.tgi_adapter.shard.health import HealthWatch
from pageport.core import EngineDeadError, FinishReason


def warmup_batch(*truncations: int) -> Any:
    """As the router makes it: every id 0, an image, a watermark, and a text that has to be cut."""
    chunks = [{"text": "_test " * 100}, {"image": {"data": b"png", "mimetype": "image/jpeg;base64"}}]
    requests = [
        request(
            0,
            "_test " * 100 + "![](data:image/jpeg;base64,cG5n)",
            truncate=truncate,
            max_new_tokens=1,
            top_n_tokens=20,
            prefill_logprobs=True,
            parameters={"temperature": 0.9, "top_k": 10, "watermark": True, "seed": 0},
            stopping={"ignore_eos_token": True},
            input_chunks={"chunks": chunks},
        )
        for truncate in truncations
    ]
    return v3.Batch(id=0, requests=requests, size=len(requests))


async def warm_up(shard: Shard, truncations: tuple[int, ...] = (40, 24), **limits: int) -> v3.WarmupResponse:
    limits = {"max_prefill_tokens": 4096, **limits}
    call = asyncio.ensure_future(
        shard.v3.Warmup(v3.WarmupRequest(batch=warmup_batch(*truncations), **limits), timeout=20)
    )
    before = len(shard.engine.submissions)
    await until(lambda: call.done() or len(shard.engine.submissions) > before)
    for submission in shard.engine.submissions[before:]:
        submission.emit("xy", end=FinishReason.LENGTH)
    answer: v3.WarmupResponse = await call
    return answer


async def test_service_discovery_names_every_rank(tmp_path: Path) -> None:
    async with running_shard(tmp_path, rank=1, world_size=2) as shard:
        answer = await shard.v3.ServiceDiscovery(v3.ServiceDiscoveryRequest())
        assert list(answer.urls) == [f"unix://{tmp_path}/shard-0", f"unix://{tmp_path}/shard-1"]
        assert shard.path == tmp_path / "shard-1"


@pytest.mark.parametrize("chunking", [True, False])
async def test_info_is_the_truth(tmp_path: Path, chunking: bool) -> None:
    async with running_shard(tmp_path, support_chunking=chunking, block_size=32) as shard:
        assert await shard.v3.Info(v3.InfoRequest()) == v3.InfoResponse(
            requires_padding=False,
            dtype="torch.bfloat16",
            device_type="cuda",
            speculate=0,
            support_chunking=chunking,
            use_prefix_caching=False,
            attention_impl="paged",
            block_size=32,
        )
        answer = await shard.v2.Info(v2.InfoRequest())
        assert answer == v2.InfoResponse(dtype="torch.bfloat16", device_type="cuda")


async def test_warmup_runs_something_small_and_leaves_nothing(shard: Shard) -> None:
    answer = await warm_up(shard)
    (submission,) = shard.engine.submissions
    assert submission.prompt == ("_test " * 100)[-16:]
    assert submission.sampling.max_tokens == 2
    assert submission.sampling.ignore_eos
    assert shard.held_requests == []
    assert answer == v3.WarmupResponse(
        max_supported_total_tokens=16384, max_input_tokens=2047, max_total_tokens=2048
    )


async def test_warmup_answers_given_limits_as_they_are(shard: Shard) -> None:
    answer = await warm_up(shard, max_input_tokens=300, max_total_tokens=400)
    assert (answer.max_input_tokens, answer.max_total_tokens) == (300, 400)
    answer = await warm_up(shard, max_total_tokens=400)
    assert (answer.max_input_tokens, answer.max_total_tokens) == (399, 400)
    answer = await warm_up(shard, max_input_tokens=300)
    assert (answer.max_input_tokens, answer.max_total_tokens) == (300, 2048)


@pytest.mark.parametrize(
    ("settings", "supported"),
    [({"overcommit": 2.5}, 40960), ({"world_size": 2}, 32768), ({"world_size": 2, "overcommit": 1.5}, 49152)],
)
async def test_what_is_promised(tmp_path: Path, settings: dict[str, Any], supported: int) -> None:
    async with running_shard(tmp_path, **settings) as shard:
        assert (await warm_up(shard)).max_supported_total_tokens == supported


async def test_without_chunking_a_prompt_fits_into_one_prefill(plain_shard: Shard) -> None:
    answer = await warm_up(plain_shard, max_prefill_tokens=512)
    assert (answer.max_input_tokens, answer.max_total_tokens) == (512, 2048)


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [
        ({"max_prefill_tokens": 20000}, ("--max-batch-prefill-tokens: 20000", "16384")),
        ({"max_total_tokens": 4096}, ("--max-total-tokens: 4096", "2048")),
        ({"max_input_tokens": 400, "max_total_tokens": 400}, ("--max-input-tokens: 400", "400")),
        (
            {"max_input_tokens": 600, "max_prefill_tokens": 512},
            ("--max-input-tokens: 600", "--max-batch-prefill-tokens, 512"),
        ),
    ],
)
async def test_limits_that_cannot_be_kept_are_named_with_both_numbers(
    plain_shard: Shard, limits: dict[str, int], numbers: tuple[str, str]
) -> None:
    code, words = await refused(warm_up(plain_shard, **limits))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert words.startswith(numbers[0])
    assert numbers[1] in words[len(numbers[0]) :]
    assert plain_shard.engine.submissions == []


async def test_a_warmup_that_cannot_generate_fails(shard: Shard) -> None:
    call = shard.v3.Warmup(v3.WarmupRequest(batch=warmup_batch(10), max_prefill_tokens=100))
    failing = asyncio.ensure_future(refused(call))
    (await shard.engine.submitted(1))[0].fail(EngineDeadError("no kernel for this device"))
    assert await failing == (grpc.StatusCode.INTERNAL, "no kernel for this device")


async def test_a_small_cache_bounds_what_one_request_may_have(tmp_path: Path) -> None:
    engine = ManualEngine(byte_tokenizer())
    engine.info = replace(engine.info, max_model_len=512, kv_token_capacity=512)
    async with running_shard(tmp_path, engine) as shard:
        answer = await warm_up(shard, max_prefill_tokens=512)
        assert answer == v3.WarmupResponse(
            max_supported_total_tokens=512, max_input_tokens=511, max_total_tokens=512
        )


async def test_the_second_version_from_its_start_to_an_answer(shard: Shard) -> None:
    """No chunks, no cached batch, no current tokens; the text is `inputs`, and special tokens are always added."""
    requests = [request(0, "_test " * 9, pb=v2, truncate=8, max_new_tokens=1) for _ in range(2)]
    limits = {"max_input_length": 1024, "max_prefill_tokens": 4096, "max_total_tokens": 2048}
    call = asyncio.ensure_future(
        shard.v2.Warmup(v2.WarmupRequest(batch=v2.Batch(requests=requests), **limits))
    )
    (await shard.engine.submitted(1))[0].emit("xy", end=FinishReason.LENGTH)
    assert await call == v2.WarmupResponse(max_supported_total_tokens=16384)

    call = asyncio.ensure_future(
        shard.v2.Prefill(
            v2.PrefillRequest(batch=v2.Batch(id=1, requests=[request(1, "Hi", pb=v2, max_new_tokens=4)]))
        )
    )
    submission = (await shard.engine.submitted(2))[1]
    assert submission.prompt == "Hi"
    submission.emit("a")
    answer = await call
    assert answer.batch == v2.CachedBatch(id=1, request_ids=[1], size=1, max_tokens=6)
    submission.emit(end=FinishReason.STOP)
    answer = await shard.v2.Decode(v2.DecodeRequest(batches=[answer.batch]))
    assert list(answer.generations[0].tokens.ids) == [END]
    assert answer.generations[0].generated_text == v2.GeneratedText(
        text="a", generated_tokens=2, finish_reason=v2.FINISH_REASON_EOS_TOKEN
    )
    assert not answer.HasField("batch")


async def test_the_second_version_joins_batches_in_a_decode(shard: Shard) -> None:
    batches = []
    for number in range(2):
        call = asyncio.ensure_future(
            shard.v2.Prefill(v2.PrefillRequest(batch=v2.Batch(id=number, requests=[request(number, pb=v2)])))
        )
        (await shard.engine.submitted(number + 1))[number].emit("a")
        batches.append((await call).batch)
    call = asyncio.ensure_future(shard.v2.Decode(v2.DecodeRequest(batches=batches)))
    shard.engine.submissions[1].emit("b")
    answer = await call
    assert answer.batch.id == 0
    assert list(answer.batch.request_ids) == [0, 1]
    filtered = await shard.v2.FilterBatch(v2.FilterBatchRequest(batch_id=0, request_ids=[1]))
    assert list(filtered.batch.request_ids) == [1]
    await shard.v2.ClearCache(v2.ClearCacheRequest())
    assert shard.held_requests == []


async def test_health_answers_in_the_middle_of_everything(shard: Shard) -> None:
    call = shard.prefill(0, [request(0)])
    await shard.engine.submitted(1)
    assert await shard.v3.Health(v3.HealthRequest()) == v3.HealthResponse()
    assert await shard.v2.Health(v2.HealthRequest()) == v2.HealthResponse()
    assert not call.done()
    shard.engine.submissions[0].emit("a")
    await call


async def test_health_tells_that_the_engine_is_gone(shard: Shard) -> None:
    shard.server.health.give_up()
    code, words = await refused(shard.v3.Health(v3.HealthRequest()))
    assert (code, words) == (
        grpc.StatusCode.UNAVAILABLE,
        "the engine is gone and will not be started again",
    )


def test_a_restart_is_no_illness_but_a_long_absence_is() -> None:
    engine = ManualEngine(byte_tokenizer())
    now = 100.0
    watch = HealthWatch(engine, patience_s=60.0, clock=lambda: now)
    engine.healthy = False
    assert watch.problem() is None
    now = 159.0
    assert watch.problem() is None
    now = 161.0
    assert watch.problem() == "there has been no engine for 61 s"
    engine.healthy = True
    assert watch.problem() is None
    engine.healthy = False
    assert watch.problem() is None


async def test_liveness_in_the_second_version(shard: Shard) -> None:
    requests = [request(LIVENESS, "liveness", pb=v2, truncate=10, max_new_tokens=1)]
    call = asyncio.ensure_future(
        shard.v2.Prefill(v2.PrefillRequest(batch=v2.Batch(id=LIVENESS, requests=requests)))
    )
    (await shard.engine.submitted(1))[0].emit("x", end=FinishReason.LENGTH)
    assert (await call).generations[0].request_id == LIVENESS
    assert shard.held_requests == []


async def test_the_reflection_service_names_both_services(shard: Shard) -> None:
    async with grpc.aio.insecure_channel(f"unix:{shard.path}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        names = {
            service.name
            async for answer in stub.ServerReflectionInfo(iter([ask]), timeout=20)
            for service in answer.list_services_response.service
        }
    assert names >= {"generate.v2.TextGenerationService", "generate.v3.TextGenerationService"}
