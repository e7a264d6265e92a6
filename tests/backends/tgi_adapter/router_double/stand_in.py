"""The scripted shard behind the recordings: fixed tokens, one a step, and every call written down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from double import LIVENESS_ID, ShardFailed
from scripted_engine import EOS, Script
from tokenizers import Tokenizer

# What a call took beside the step itself, in the recordings: some milliseconds.
_CALL_S = 0.0025


@dataclass(eq=False)
class Held:
    """One request in the shard."""

    id: int
    prompt: int
    max_new_tokens: int
    script: Script
    steps: list[int]
    computed: int = 0
    given: int = 0

    @property
    def reserved(self) -> int:
        return self.prompt + self.max_new_tokens

    @property
    def pending(self) -> int:
        return self.prompt - self.computed

    @property
    def is_over(self) -> bool:
        return self.given > 0 and (self.given == self.max_new_tokens or self.steps[self.given - 1] == EOS)


class StandIn:
    """
    Args:
        prune: finished requests are dropped without being told.
        chunk_budget: tokens that a step computes.
        failing: which Prefill calls fail, by number.
    """

    def __init__(
        self,
        pb: Any,
        tokenizer: Tokenizer,
        scripts: list[Script],
        *,
        step_s: float,
        prune: bool,
        chunk_budget: int,
        failing: frozenset[int] = frozenset(),
    ) -> None:
        self._pb, self._tokenizer, self._scripts = pb, tokenizer, scripts
        self._step_s, self._prune, self._chunk_budget = step_s, prune, chunk_budget
        self._batches: dict[int, list[Held]] = {}
        self._arrivals = 0
        self._prefills = 0
        self._failing = failing
        self.calls: list[list[Any]] = []

    async def Prefill(self, request: Any) -> Any:
        batch = request.batch
        cached = request.cached_batch.id if request.HasField("cached_batch") else None
        requests = [[r.id, r.chunk_len if r.HasField("chunk_len") else None] for r in batch.requests]
        call = ["Prefill", batch.id, requests, batch.max_tokens, cached, False]
        self.calls.append(call)
        held = self._batches.pop(cached) if cached is not None else []
        fresh = [self._hold(item) for item in batch.requests]
        self._prefills += 1
        if self._prefills - 1 in self._failing:
            call[-1] = True
            await asyncio.sleep(_CALL_S)
            raise ShardFailed("prefill error")
        await asyncio.sleep(self._step_s + 2 * _CALL_S)
        first = {
            one.id: item.chunk_len for one, item in zip(fresh, batch.requests, strict=True) if item.chunk_len
        }
        held = [*held, *fresh]
        answer = self._pb.PrefillResponse(generations=self._step(held, first))
        return self._keep(answer, batch.id if cached is None else cached, held)

    async def Decode(self, request: Any) -> Any:
        call = ["Decode", [[batch.id, list(batch.request_ids)] for batch in request.batches], False]
        self.calls.append(call)
        held = [one for batch in request.batches for one in self._batches.pop(batch.id)]
        await asyncio.sleep(self._step_s + _CALL_S)
        if any(one.script.decode_error and one.given >= one.script.decode_error_at for one in held):
            call[-1] = True
            raise ShardFailed("decode error")
        answer = self._pb.DecodeResponse(generations=self._step(held, {}))
        return self._keep(answer, request.batches[0].id, held)

    async def FilterBatch(self, request: Any) -> Any:
        self.calls.append(["FilterBatch", request.batch_id, list(request.request_ids)])
        held = [one for one in self._batches[request.batch_id] if one.id in request.request_ids]
        self._batches[request.batch_id] = held
        return self._pb.FilterBatchResponse(batch=self._cached(request.batch_id, held))

    async def ClearCache(self, request: Any) -> Any:
        self.calls.append(["ClearCache", request.id])
        self._batches.pop(request.id, None)
        return self._pb.ClearCacheResponse()

    # -- private -------------------------------------------------------------------------------------------

    def _hold(self, request: Any) -> Held:
        script = self._scripts[min(self._arrivals, len(self._scripts) - 1)]
        self._arrivals += request.id != LIVENESS_ID
        maximum = request.stopping_parameters.max_new_tokens
        steps: list[int] = []
        for step in script.steps(self._tokenizer):
            steps += step
            if len(steps) >= maximum:
                break
        return Held(request.id, len(self._tokenizer.encode(request.inputs).ids), maximum, script, steps)

    def _step(self, held: list[Held], first: dict[int, int]) -> list[Any]:
        """Compute prompts as far as the budget goes, older ones first; a token for each whose prompt is done."""
        generations = []
        budget = self._chunk_budget - (len(held) - 1)
        for one in held:
            if one.is_over:
                continue
            if one.pending > 0:
                chunk = first.get(one.id) or min(one.pending, max(budget, 1))
                budget -= chunk
                one.computed += chunk
                if one.pending > 0:
                    continue
            one.given += 1
            if one.given - 1 == one.script.silent_at:
                one.steps.insert(one.given - 1, -1)
                one.script = Script(one.script.text, eos=one.script.eos)
                one.steps.pop(one.given - 1)
                one.given -= 1
                continue
            generations.append(self._generation(one))
        return generations

    def _generation(self, one: Held) -> Any:
        token = one.steps[one.given - 1]
        generation = self._pb.Generation(request_id=one.id)
        tokens = generation.tokens
        tokens.ids.append(token)
        tokens.texts.append(self._tokenizer.decode([token]))
        tokens.logprobs.append(-0.25 * one.given)
        tokens.is_special.append(token == EOS)
        if one.is_over:
            generation.generated_text.text = self._tokenizer.decode(one.steps[: one.given])
            generation.generated_text.generated_tokens = one.given
        return generation

    def _keep(self, answer: Any, batch_id: int, held: list[Held]) -> Any:
        if all(one.is_over for one in held):
            return answer
        if self._prune:
            held = [one for one in held if not one.is_over]
        self._batches[batch_id] = held
        answer.batch.CopyFrom(self._cached(batch_id, held))
        return answer

    def _cached(self, batch_id: int, held: list[Held]) -> Any:
        return self._pb.CachedBatch(
            id=batch_id,
            request_ids=[one.id for one in held],
            size=len(held),
            max_tokens=sum(one.reserved for one in held),
            current_tokens=sum(max(one.pending, 1) for one in held),
        )
