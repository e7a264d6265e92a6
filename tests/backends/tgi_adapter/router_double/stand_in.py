"""The scripted shard behind the recordings: fixed tokens, one a step, and every call written down."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from double import LIVENESS_ID, ShardFailed
from recording import Call, written
from scripted_engine import EOS, Script
from tokenizers import Tokenizer

# What a call took beside the step itself, in the recordings: some milliseconds.
_CALL_S = 0.0025
# What the router takes of one answer, in bytes.
_LARGEST_ANSWER = 4 * 2**20


@dataclass(frozen=True)
class Behaviour:
    """
    Attributes:
        prune: finished requests are dropped without being told.
        step_s: what a step takes.
        info, warmup: the answers to these calls.
    """

    info: Mapping[str, Any]
    warmup: Mapping[str, int | None]
    prune: bool = False
    step_s: float = 0.05


@dataclass(eq=False)
class Held:
    """One request in the shard.

    Attributes:
        tokens: what it will play; `next` is the place of the next one.
    """

    id: int
    prompt: int
    new: int
    script: Script
    tokens: list[int]
    computed: int = 0
    next: int = 0
    given: list[int] = field(default_factory=list)

    @property
    def pending(self) -> int:
        return self.prompt - self.computed

    @property
    def is_over(self) -> bool:
        return len(self.given) == self.new or EOS in self.given[-1:]

    def step(self) -> int | None:
        """Its next token; None where the script loses it."""
        self.next += 1
        if self.next - 1 == self.script.silent_at:
            return None
        self.given.append(self.tokens[self.next - 1])
        return self.given[-1]


class StandIn:
    """
    Attributes:
        calls: what the router has called, since the last `begin`.
    """

    def __init__(self, pb: Any, tokenizer: Tokenizer, behaviour: Behaviour) -> None:
        self._pb, self._tokenizer, self._behaviour = pb, tokenizer, behaviour
        self._batches: dict[int, list[Held]] = {}
        self._budget = 0
        self.calls: list[Call] = []
        self.begin([Script()])

    def begin(self, scripts: Sequence[Script], failing: Collection[int] = ()) -> None:
        """
        Args:
            scripts: by order of arrival; the last one for all that follow.
            failing: which of the calls of `Prefill` fail, by number.
        """
        self._scripts, self._failing = scripts, failing
        self._arrivals = self._prefills = 0
        self.calls = []

    # -- start-up ------------------------------------------------------------------------------------------

    async def ServiceDiscovery(self, request: Any) -> Any:
        self.calls.append(["ServiceDiscovery"])
        return self._pb.ServiceDiscoveryResponse(urls=["unix:///shard-0"])

    async def Info(self, request: Any) -> Any:
        self.calls.append(["Info"])
        known = self._pb.InfoResponse.DESCRIPTOR.fields_by_name
        return self._pb.InfoResponse(
            **{key: value for key, value in self._behaviour.info.items() if key in known}
        )

    async def Warmup(self, request: Any) -> Any:
        self.calls.append(["Warmup"])
        self._budget = request.max_prefill_tokens
        answer = self._behaviour.warmup
        response = self._pb.WarmupResponse(max_supported_total_tokens=answer["supported"])
        if "max_input_tokens" in response.DESCRIPTOR.fields_by_name:
            response.max_input_tokens, response.max_total_tokens = answer["input"], answer["total"]
        return response

    # -- steps ---------------------------------------------------------------------------------------------

    async def Prefill(self, request: Any) -> Any:
        batch = request.batch
        if batch.id == LIVENESS_ID:
            return await self._liveness(request)
        cached = request.cached_batch.id if _has(request, "cached_batch") else None
        held = self._batches.pop(cached) if cached is not None else []
        fresh = [self._hold(item) for item in batch.requests]
        self._prefills += 1
        if self._prefills - 1 in self._failing:
            self.calls.append(written("Prefill", request, failed=True))
            await asyncio.sleep(_CALL_S)
            raise ShardFailed("prefill error")
        await asyncio.sleep(self._behaviour.step_s + 2 * _CALL_S + max(one.script.prefill_s for one in fresh))
        self.calls.append(written("Prefill", request))
        chunks = {item.id: item.chunk_len for item in batch.requests if _has(item, "chunk_len")}
        held = [*held, *fresh]
        answer = self._pb.PrefillResponse(generations=self._step(held, chunks))
        self._keep(answer, batch.id if cached is None else cached, held)
        return _taken(answer, held)

    async def Decode(self, request: Any) -> Any:
        held = [one for batch in request.batches for one in self._batches.pop(batch.id)]
        fails = any(one.script.decode_error and one.next >= one.script.decode_error_at for one in held)
        await asyncio.sleep(_CALL_S if fails else self._behaviour.step_s + _CALL_S)
        self.calls.append(written("Decode", request, failed=fails))
        if fails:
            raise ShardFailed("decode error")
        answer = self._pb.DecodeResponse(generations=self._step(held, {}))
        self._keep(answer, request.batches[0].id, held)
        return answer

    async def FilterBatch(self, request: Any) -> Any:
        self.calls.append(written("FilterBatch", request))
        held = [one for one in self._batches[request.batch_id] if one.id in request.request_ids]
        self._batches[request.batch_id] = held
        return self._pb.FilterBatchResponse(batch=self._cached(request.batch_id, held))

    async def ClearCache(self, request: Any) -> Any:
        self.calls.append(written("ClearCache", request))
        self._batches.pop(request.id, None)
        return self._pb.ClearCacheResponse()

    async def Health(self, request: Any) -> Any:
        await asyncio.sleep(_CALL_S)
        self.calls.append(["Health"])
        return self._pb.HealthResponse()

    # -- private -------------------------------------------------------------------------------------------

    async def _liveness(self, request: Any) -> Any:
        """Beside whatever runs; nothing is kept."""
        await asyncio.sleep(_CALL_S)
        self.calls.append(written("Prefill", request))
        (item,) = request.batch.requests
        one = Held(item.id, 1, 1, Script(), [28], computed=1)
        one.step()
        return self._pb.PrefillResponse(generations=[self._generation(one)])

    def _hold(self, request: Any) -> Held:
        script = self._scripts[min(self._arrivals, len(self._scripts) - 1)]
        self._arrivals += 1
        new = request.stopping_parameters.max_new_tokens
        tokens: list[int] = []
        for step in script.steps(self._tokenizer):
            tokens += step
            if len(tokens) > new:  # one more than it can give: one may be lost
                break
        special = not _knows(request, "add_special_tokens") or request.add_special_tokens
        prompt = self._tokenizer.encode(request.inputs, add_special_tokens=special).ids[-request.truncate :]
        cached = request.cache_len if _knows(request, "cache_len") else 0
        return Held(request.id, len(prompt), new, script, tokens, computed=cached)

    def _step(self, held: list[Held], chunks: Mapping[int, int]) -> list[Any]:
        """Compute prompts as far as the budget goes, older ones first; a token for each whose prompt is done."""
        generations = []
        budget = self._budget - (len(held) - 1)
        for one in held:
            if one.is_over:
                continue
            if one.pending > 0:
                chunk = chunks.get(one.id) or min(one.pending, max(budget, 1))
                budget -= chunk
                one.computed += chunk
                if one.pending > 0:
                    continue
            if one.step() is not None:
                generations.append(self._generation(one))
        return generations

    def _generation(self, one: Held) -> Any:
        token = one.given[-1]
        generation = self._pb.Generation(request_id=one.id)
        tokens = generation.tokens
        tokens.ids.append(token)
        tokens.texts.append(self._tokenizer.decode([token]))
        tokens.logprobs.append(-0.25 * len(one.given))
        tokens.is_special.append(token == EOS)
        if one.is_over:
            generation.generated_text.text = self._tokenizer.decode(one.given)
            generation.generated_text.generated_tokens = len(one.given)
            generation.generated_text.finish_reason = 0 if len(one.given) == one.new else 1
        return generation

    def _keep(self, answer: Any, batch_id: int, held: list[Held]) -> None:
        if all(one.is_over for one in held):
            return
        if self._behaviour.prune:
            held = [one for one in held if not one.is_over]
        self._batches[batch_id] = held
        answer.batch.CopyFrom(self._cached(batch_id, held))

    def _cached(self, batch_id: int, held: list[Held]) -> Any:
        batch = self._pb.CachedBatch(
            id=batch_id,
            request_ids=[one.id for one in held],
            size=len(held),
            max_tokens=sum(one.prompt + one.new for one in held),
        )
        if _knows(batch, "current_tokens"):
            batch.current_tokens = sum(max(one.pending, 1) for one in held)
        return batch


def _taken(answer: Any, held: Sequence[Held]) -> Any:
    """The answer as the router takes it: one that is too large is an error there."""
    if sum(one.script.pad_text for one in held) > _LARGEST_ANSWER:
        raise ShardFailed("answer too large")
    return answer


def _knows(message: Any, name: str) -> bool:
    return name in message.DESCRIPTOR.fields_by_name


def _has(message: Any, name: str) -> bool:
    return _knows(message, name) and bool(message.HasField(name))
