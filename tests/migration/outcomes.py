"""An outcome with known figures, made without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from pageport.migration.poc.kv_sampler import KVSample, KVTimeline, read_after
from pageport.migration.poc.load import Answer, LoadResult, Piece, summarise
from pageport.migration.poc.measure import Measurement, Variant
from pageport.migration.poc.parity import Parity, compare
from pageport.migration.poc.run import Outcome, Plan
from pageport.migration.poc.workload import LoadRequest

MIB = 2**20


async def _never(_request: LoadRequest) -> AsyncIterator[Piece]:
    raise AssertionError("nothing is asked here")
    yield  # pragma: no cover - makes it a generator


def make_request(index: int = 0, output_tokens: int = 4) -> LoadRequest:
    return LoadRequest(index, f"prompt {index}", 10, output_tokens)


def make_answer(request: LoadRequest, sent: float, arrivals: list[float]) -> Answer:
    return Answer(request, sent, arrivals, num_tokens=request.output_tokens)


def make_measurement(entry: str, arrivals: list[list[float]], seconds: float, kv: KVTimeline) -> Measurement:
    answers = [make_answer(make_request(i), 0.0, times) for i, times in enumerate(arrivals)]
    result: LoadResult = summarise(answers, seconds, peak_in_flight=len(answers))
    return Measurement(Variant(entry, f"title of {entry}", _never, read_after), result, kv)


def make_kv(*samples: tuple[float, float, float]) -> KVTimeline:
    """Samples of (seconds, MiB reserved, MiB used)."""
    timeline = KVTimeline()
    for moment, reserved, used in samples:
        timeline.add(moment, KVSample(reserved * MIB, used * MIB, running=2, peak_running=3))
    return timeline


def make_outcome() -> Outcome:
    """8 tokens in 4, 2 and 0.5 seconds; one of two bfloat16 answers differs, at token 1."""
    kv = make_kv((0.0, 10.0, 5.0), (1.0, 20.0, 10.0), (2.0, 0.0, 0.0))
    measurements = [
        make_measurement("before", [[2.0], [4.0]], 4.0, kv),
        make_measurement("before_batched", [[2.0], [2.0]], 2.0, kv),
        make_measurement("after", [[0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.5]], 0.5, kv),
    ]
    served: Parity = compare("bfloat16", [[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 4], [5, 9, 7, 8]])
    return Outcome(
        plan=Plan(Path("model"), "bfloat16", requests=2, concurrency=2, seed=7),
        load=[make_request(0), make_request(1)],
        measurements=measurements,
        parity=[compare("float32", [[1, 2]], [[1, 2]]), served],
        baseline=compare("bfloat16", [[1], [2]], [[1], [3]]),
        passes_equal=2,
        environment={
            "cpu": "a <fast> CPU",
            "cores": 2,
            "omp_wait_policy": "PASSIVE",
            "date": "2026-01-02T03:04:05+00:00",
        },
        load_average=0.5,
    )
