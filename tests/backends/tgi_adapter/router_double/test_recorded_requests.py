"""The recorded calls themselves, one by one, to the real shard: over all calls each request is given what it was given.

The split over the calls may differ, because the shard's engine runs on by itself. What the router would not do then is
left out: a step of a batch that has ended already; dropping a request that has not come to its end yet.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from double import LIVENESS_ID, ShardFailed
from driven_shard import let_go, messages, serving
from recording import Call, Case, load_session, session_names, whole
from scripted_engine import ScriptedEngine
from tokenizers import Tokenizer

CASES = [
    (name, case.name)
    for name in session_names()
    for case in load_session(name).cases
    if case.given and not any(script.prefill_s > 1 for script in case.scripts)
]


@dataclass
class Given:
    """What one request was given so far; the tokens' log-probabilities are the scripted engine's."""

    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    end: list[Any] | None = None

    def add(self, generation: Any) -> None:
        assert self.end is None, "something came after the end"
        tokens = generation.tokens
        start = len(self.ids) + 1
        self.ids += tokens.ids
        self.texts += tokens.texts
        if generation.HasField("generated_text"):
            end = generation.generated_text
            self.end = [end.text, end.generated_tokens, end.finish_reason]
        if "[error]" not in tokens.texts[-1]:
            assert list(tokens.logprobs) == [-0.25 * (start + place) for place in range(len(tokens.ids))]


class Replay:
    """
    Args:
        ending: requests that come to their own end in the recording.

    Attributes:
        given: by request.
        batches: the shard's batch for each recorded one that goes on.
    """

    def __init__(self, pb: Any, shard: Any, ending: set[int]) -> None:
        self._pb, self._shard, self._ending = pb, shard, ending
        self.given: defaultdict[int, Given] = defaultdict(Given)
        self.batches: dict[int, Any] = {}

    async def make(self, call: Call) -> None:
        match call:
            case ["Prefill", batch, about, requests, _]:
                await self._prefill(batch, about, requests)
            case ["Decode", batches, _]:
                await self.decode([batch for batch, _ in batches])
            case ["FilterBatch", batch, ids]:
                await self._filter(batch, ids)
            case ["ClearCache", batch]:
                await self._shard.ClearCache(self._pb.ClearCacheRequest(id=self._id(batch)))
                self.batches.pop(batch, None)
            case ["Health"]:
                await self._shard.Health(self._pb.HealthRequest())
            case _:
                raise AssertionError(call)

    async def decode(self, batches: list[int]) -> None:
        going = [self.batches.pop(batch) for batch in batches if batch in self.batches]
        if not going:
            return
        try:
            answer = await self._shard.Decode(self._pb.DecodeRequest(batches=going))
        except ShardFailed:
            return
        self._take(batches[0], answer)

    async def _filter(self, batch: int, ids: list[int]) -> None:
        held = self.batches[batch].request_ids if batch in self.batches else []
        unfinished = {request_id for request_id in held if self.given[request_id].end is None}
        kept = sorted({*ids, *(unfinished & self._ending)})
        request = self._pb.FilterBatchRequest(batch_id=self._id(batch), request_ids=kept)
        filtered = await self._shard.FilterBatch(request)
        assert set(filtered.batch.request_ids) <= set(kept)
        self._keep(batch, filtered)

    async def _prefill(self, batch: int, about: dict[str, int], requests: list[dict[str, Any]]) -> None:
        pb = self._pb
        request = pb.PrefillRequest()
        request.batch.id, request.batch.size = batch, about["size"]
        request.batch.max_tokens = about.get("max_tokens", 0)
        request.batch.requests.extend([self._request(values) for values in requests])
        cached = about.get("cached")
        if cached in self.batches:
            request.cached_batch.CopyFrom(self.batches.pop(cached))
        try:
            answer = await self._shard.Prefill(request)
        except ShardFailed:
            return
        if batch == LIVENESS_ID:
            assert [generation.request_id for generation in answer.generations] == [LIVENESS_ID]
            assert not answer.HasField("batch")
        else:
            self._take(batch if cached is None else cached, answer)

    def _request(self, values: dict[str, Any]) -> Any:
        pb, prompt = self._pb, whole(values["prompt"])
        request = pb.Request(id=values["id"], inputs=prompt, truncate=values["truncate"])
        neutral = {"temperature": 1.0, "top_p": 1.0, "typical_p": 1.0, "repetition_penalty": 1.0}
        request.parameters.CopyFrom(
            pb.NextTokenChooserParameters(**{**neutral, **values.get("parameters", {})})
        )
        request.stopping_parameters.max_new_tokens = values["new"]
        request.prefill_logprobs = values.get("prefill_logprobs", False)
        if "blocks" in values:
            request.input_chunks.chunks.add(text=prompt)
            request.add_special_tokens = values.get("special", False)
            for name in ("blocks", "slots"):
                count, first, _ = values[name]
                getattr(request, name).extend(range(first, first + count))
            request.cache_len = values.get("cache_len", 0)
            if "chunk_len" in values:
                request.chunk_len = values["chunk_len"]
        return request

    def _take(self, batch: int, answer: Any) -> None:
        for generation in answer.generations:
            self.given[generation.request_id].add(generation)
        self._keep(batch, answer)

    def _keep(self, batch: int, answer: Any) -> None:
        if answer.HasField("batch"):
            assert answer.batch.size == len(answer.batch.request_ids) > 0
            self.batches[batch] = answer.batch
        else:
            self.batches.pop(batch, None)

    def _id(self, batch: int) -> int:
        return self.batches[batch].id if batch in self.batches else batch


def prompts(case: Case, tokenizer: Tokenizer) -> list[list[int]]:
    """All of them whole, whatever is said about cached tokens and pieces."""
    requests = [request for call in case.calls if call[0] == "Prefill" for request in call[3]]
    return [tokenizer.encode(whole(one["prompt"])).ids[-one["truncate"] :] for one in requests]


@pytest.mark.parametrize(("session", "name"), CASES, ids=str)
async def test_recorded_calls_bring_the_recorded_tokens(
    session: str, name: str, tokenizer: Tokenizer
) -> None:
    (case,) = [case for case in load_session(session).cases if case.name == name]
    setting = load_session(session).setting
    engine = ScriptedEngine(tokenizer, step_s=0.002)
    *first, last = case.shard_scripts
    engine.play_in_turn(first)
    engine.play(last)
    chunking = setting["info"].get("support_chunking", False)
    ending = {request_id for request_id, recorded in case.given.items() if recorded["end"] is not None}
    async with serving(engine, tokenizer, v2=setting["v2"], chunking=chunking) as (calls, server):
        replay = Replay(messages(setting["v2"]), calls, ending)
        async with asyncio.timeout(20):
            for call in case.calls:
                await replay.make(call)
            while replay.batches:
                await replay.decode([next(iter(replay.batches))])
        assert len(server.core.batches) == 0
    await let_go(engine)
    assert [list(submitted.prompt_ids) for submitted in engine.submitted] == prompts(case, tokenizer)
    for request_id, recorded in case.given.items():
        given = replay.given[request_id]
        if recorded["end"] is not None:
            assert [given.ids, given.texts, given.end] == [
                recorded["ids"],
                recorded["texts"],
                recorded["end"],
            ]
        else:  # its client left, or a call failed that it shared
            common = min(len(given.ids), len(recorded["ids"]))
            assert given.ids[:common] == recorded["ids"][:common]
