"""The batches that the router believes in: names for sets of requests. What runs together is the engine's business."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pageport.backends.tgi_adapter.shard.flow import RequestFlow


@dataclass(slots=True)
class HeldBatch:
    """One cached batch.

    Attributes:
        flows: this rank's requests that go on, by id.
        silent: requests that are held in name only: other ranks', and finished ones where all ranks must agree on
            who is held.
    """

    id: int
    flows: dict[int, RequestFlow] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)

    @property
    def request_ids(self) -> list[int]:
        return sorted({*self.flows, *self.silent})

    @property
    def max_tokens(self) -> int:
        """Tokens the router has to count as taken."""
        return sum(flow.reserved_tokens for flow in self.flows.values())

    @property
    def current_tokens(self) -> int:
        """Tokens still to be computed before each request brings its next one."""
        return sum(flow.prompt_length if flow.is_prefilling else 1 for flow in self.flows.values())

    def join(self, other: HeldBatch) -> None:
        self.flows |= other.flows
        self.silent |= other.silent

    def keep(self, request_ids: Collection[int]) -> None:
        """Forget all other requests; those that run are ended."""
        for request_id in [request_id for request_id in self.flows if request_id not in request_ids]:
            self.flows.pop(request_id).cancel()
        self.silent.intersection_update(request_ids)

    def drop(self) -> None:
        self.keep(())


class BatchStore:
    """Batches by id. Taking one removes it: each call consumes the batches that it names."""

    def __init__(self) -> None:
        self._batches: dict[int, HeldBatch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, batch: HeldBatch) -> None:
        replaced = self._batches.get(batch.id)
        if replaced is not None and replaced is not batch:
            replaced.drop()
        self._batches[batch.id] = batch

    def take(self, batch_id: int) -> HeldBatch | None:
        return self._batches.pop(batch_id, None)

    def take_all(self, batch_ids: Iterable[int]) -> HeldBatch:
        """The named batches as one, under the first one's id.

        Raises:
            KeyError: one of them is not here; the others are dropped, because the router gives up all of them.
        """
        taken = [(batch_id, self.take(batch_id)) for batch_id in batch_ids]
        missing = [batch_id for batch_id, batch in taken if batch is None]
        found = [batch for _, batch in taken if batch is not None]
        if missing or not found:
            for batch in found:
                batch.drop()
            raise KeyError(missing[0] if missing else None)
        first, *others = found
        for other in others:
            first.join(other)
        return first

    def clear(self, batch_id: int | None = None) -> None:
        """Drop one batch, or all. What is not here needs no dropping."""
        for held_id in list(self._batches) if batch_id is None else [batch_id]:
            batch = self.take(held_id)
            if batch is not None:
                batch.drop()
