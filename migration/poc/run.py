"""The order of events: three ways to serve one model, one after the other, under one load; then parity."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tritonclient.grpc import aio as grpc

from pageport.migration.poc.environment import describe_environment, load_average
from pageport.migration.poc.kv_sampler import read_after, read_before
from pageport.migration.poc.load import Answer, Ask, run_load
from pageport.migration.poc.measure import Endpoints, Measurement, Variant, loaded, measure, warm_up
from pageport.migration.poc.parity import Parity, TransformersJudge, compare, judge_difference
from pageport.migration.poc.progress import Progress
from pageport.migration.poc.repository import BeforeEntry
from pageport.migration.poc.triton_client import ask_after, ask_before
from pageport.migration.poc.workload import LengthRange, LoadRequest, build_load

BEFORE, BATCHED, AFTER = "before", "before_batched", "after"
BEFORE_EXACT, AFTER_EXACT = "before_float32", "after_float32"
STATIC_BATCH = 8

_PROMPTS = LengthRange(mean=110, low=16, high=480)
_OUTPUTS = LengthRange(mean=44, low=8, high=200)
_WARM_UP_TOKENS = 24
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        model: a Hugging Face model folder.
        dtype: what all three variants compute in.
        requests: of the load; fewer where this machine could not send them in `before_budget_s`.
        before_budget_s: seconds that the slowest variant may take for the load.
        parity_requests, parity_tokens: float32 answers to compare, and their length.
        judged_differences: differences, at most, for which both logits are computed.
        kv_cache_bytes: Pageport's pool; enough for the load's 16 streams, and little enough for any machine.
    """

    model: Path
    dtype: str
    requests: int = 48
    concurrency: int = 16
    seed: int = 1234
    before_budget_s: float = 100.0
    parity_requests: int = 8
    parity_tokens: int = 32
    judged_differences: int = 8
    kv_cache_bytes: int = 256 * 2**20

    def before_entries(self) -> list[BeforeEntry]:
        return [
            BeforeEntry(BEFORE, 0, self.dtype),
            BeforeEntry(BATCHED, STATIC_BATCH, self.dtype),
            BeforeEntry(BEFORE_EXACT, 0, "float32"),
        ]

    def after_entries(self) -> dict[str, str]:
        """Names of Pageport's entries, with the dtype of each."""
        return {AFTER: self.dtype, AFTER_EXACT: "float32"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that was measured.

    Attributes:
        parity: before against after, once for each dtype.
        baseline: transformers against itself: the same prompts one at a time and in padded batches.
        passes_equal: answers that were the same in both passes of the load over Pageport.
        load_average: processes that wanted to run in the minute before the start.
    """

    plan: Plan
    load: list[LoadRequest]
    measurements: list[Measurement]
    parity: list[Parity]
    baseline: Parity
    passes_equal: int
    environment: dict[str, str | int]
    load_average: float


async def run(plan: Plan, endpoints: Endpoints, progress: Progress) -> Outcome:
    """Measure everything against a server that has the plan's entries and loads models on demand.

    Raises:
        RuntimeError: a request failed; figures of a broken run would mean nothing.
    """
    busy = load_average()
    async with grpc.InferenceServerClient(endpoints.grpc) as client:
        return await _Run(plan, endpoints, client, progress).outcome(busy)


class _Run:
    """One pass through the plan. Each step loads what it needs and unloads it at its end."""

    def __init__(
        self, plan: Plan, endpoints: Endpoints, client: grpc.InferenceServerClient, progress: Progress
    ) -> None:
        self._plan = plan
        self._endpoints = endpoints
        self._client = client
        self._progress = progress
        self._tokenizer = Tokenizer.from_file(str(plan.model / "tokenizer.json"))
        self._load = build_load(plan.requests, _PROMPTS, _OUTPUTS, self._tokenizer, plan.seed)

    async def outcome(self, busy: float) -> Outcome:
        before = await self._measure_before()
        batched = await self._measure_batched()
        after, after_with_ids = await self._measure_after()
        exact = await self._exact_parity()
        singly, in_batches, timed = (_in_order(m.result.answers) for m in (before, batched, after))
        with self._progress.stage("Comparing the answers"):
            served = compare(self._plan.dtype, _ids(singly), _ids(after_with_ids))
            served = self._judged(served, singly)
        return Outcome(
            plan=self._plan,
            load=self._load,
            measurements=[before, batched, after],
            parity=[exact, served],
            baseline=compare(self._plan.dtype, _ids(singly), _ids(in_batches)),
            passes_equal=sum(a.text == b.text for a, b in zip(timed, after_with_ids, strict=True)),
            environment=describe_environment(),
            load_average=busy,
        )

    async def _measure_before(self) -> Measurement:
        variant = Variant(
            BEFORE,
            "transformers, one at a time",
            ask_before(self._client, BEFORE, batched=False),
            read_before,
        )
        async with self._loaded(BEFORE):
            await warm_up(variant.ask, self._warm_up_request(), _TIMEOUT_S)
            # The first request paid for what is made only once; the second shows the rate.
            seconds = await warm_up(variant.ask, self._warm_up_request(), _TIMEOUT_S)
            self._load = load_that_fits(self._load, _WARM_UP_TOKENS / seconds, self._plan)
            return await self._measure(variant)

    async def _measure_batched(self) -> Measurement:
        variant = Variant(
            BATCHED,
            f"transformers, batches of {STATIC_BATCH}",
            ask_before(self._client, BATCHED, batched=True),
            read_before,
        )
        async with self._loaded(BATCHED):
            await warm_up(variant.ask, self._warm_up_request(), _TIMEOUT_S)
            return await self._measure(variant)

    async def _measure_after(self) -> tuple[Measurement, list[Answer]]:
        """The measurement, and the same load asked again with token ids, which would disturb the first."""
        variant = Variant(AFTER, "Pageport", ask_after(self._client, AFTER), read_after)
        async with self._loaded(AFTER):
            await warm_up(variant.ask, self._warm_up_request(), _TIMEOUT_S)
            measurement = await self._measure(variant)
            with self._progress.stage("The same load again, now with token ids"):
                answers = await self._answers(ask_after(self._client, AFTER, with_ids=True), self._load)
        return measurement, answers

    async def _measure(self, variant: Variant) -> Measurement:
        total = sum(request.output_tokens for request in self._load)
        with self._progress.bar(variant.title, total) as advance:
            measurement = await measure(
                variant,
                self._load,
                self._endpoints,
                concurrency=self._plan.concurrency,
                timeout_s=_TIMEOUT_S,
                on_answer=lambda answer: advance(answer.num_tokens),
            )
        _check_complete(variant.title, measurement.result.answers)
        return measurement

    async def _exact_parity(self) -> Parity:
        """Both sides in float32, where rounding no longer hides what is different."""
        shortened = [
            dataclasses.replace(request, output_tokens=self._plan.parity_tokens)
            for request in self._load[: self._plan.parity_requests]
        ]
        async with self._loaded(BEFORE_EXACT):
            with self._progress.stage("float32 answers of transformers"):
                before = await self._answers(ask_before(self._client, BEFORE_EXACT, batched=False), shortened)
        async with self._loaded(AFTER_EXACT):
            with self._progress.stage("float32 answers of Pageport"):
                after = await self._answers(ask_after(self._client, AFTER_EXACT, with_ids=True), shortened)
        return self._judged(compare("float32", _ids(before), _ids(after)), before)

    async def _answers(self, ask: Ask, load: Sequence[LoadRequest]) -> list[Answer]:
        result = await run_load(ask, load, concurrency=self._plan.concurrency, timeout_s=_TIMEOUT_S)
        _check_complete("parity", result.answers)
        return _in_order(result.answers)

    def _judged(self, parity: Parity, before: list[Answer]) -> Parity:
        """Add the logits of transformers, in the dtype that was served and in float32, to the first differences."""
        if not parity.first_differences:
            return parity
        judges = {
            dtype: TransformersJudge(self._plan.model, dtype) for dtype in sorted({parity.dtype, "float32"})
        }
        differences = [
            judge_difference(
                difference,
                self._tokenizer.encode(before[difference.request].request.prompt).ids,
                before[difference.request].token_ids,
                judges,
            )
            if number < self._plan.judged_differences
            else difference
            for number, difference in enumerate(parity.first_differences)
        ]
        return dataclasses.replace(parity, first_differences=differences)

    @contextlib.asynccontextmanager
    async def _loaded(self, entry: str) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            with self._progress.stage(f"Loading {entry}"):
                await stack.enter_async_context(loaded(self._client, entry))
            yield

    def _warm_up_request(self) -> LoadRequest:
        return dataclasses.replace(self._load[0], output_tokens=_WARM_UP_TOKENS)


def load_that_fits(load: list[LoadRequest], tokens_per_s: float, plan: Plan) -> list[LoadRequest]:
    """The beginning of the load that the slowest variant can answer within its budget.

    Never less than one and a half rounds of all streams: a shorter load would not show how requests take turns.
    """
    room = plan.before_budget_s * tokens_per_s
    count = 0
    for request in load:
        room -= request.output_tokens
        if room < 0 and 2 * count >= 3 * plan.concurrency:
            break
        count += 1
    return load[:count]


def _in_order(answers: Sequence[Answer]) -> list[Answer]:
    """As the load has them; they come in the order in which they were finished."""
    return sorted(answers, key=lambda answer: answer.request.index)


def _ids(answers: Sequence[Answer]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def _check_complete(what: str, answers: Sequence[Answer]) -> None:
    failed = [answer for answer in answers if not answer.complete]
    if failed:
        first = failed[0]
        reason = first.error or f"{first.num_tokens} tokens instead of {first.request.output_tokens}"
        raise RuntimeError(f"{what}: {len(failed)} of {len(answers)} requests failed; the first: {reason}")
