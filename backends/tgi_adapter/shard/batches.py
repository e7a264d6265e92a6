"""The batches that the router believes in: names for sets of requests. What runs together is the engine's business."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pageport.backends.tgi_adapter.shard.flow import RequestFlow


class UnknownBatchError(Exception):
    """A batch that is not here: never was, or was dropped."""

    def __init__(self, batch_id: int) -> None:
        super().__init__(f"there is no batch {batch_id} here")


@dataclass(slots=True)
class HeldBatch:
    """One cached batch.

    Attributes:
        flows: this rank's requests that go on, by id.
        silent: requests that are held in name only, and the tokens reserved for each: those of other ranks, and
            finished ones where all ranks must agree on who is held.
    """

    id: int
    flows: dict[int, RequestFlow] = field(default_factory=dict)
    silent: dict[int, int] = field(default_factory=dict)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self.flows or request_id in self.silent

    @property
    def request_ids(self) -> list[int]:
        return sorted([*self.flows, *self.silent])

    @property
    def max_tokens(self) -> int:
        """Tokens that the router has to count as taken."""
        return sum(flow.reserved_tokens for flow in self.flows.values()) + sum(self.silent.values())

    @property
    def current_tokens(self) -> int:
        """Tokens to compute before each request has brought its next one."""
        return sum(flow.current_tokens for flow in self.flows.values()) + len(self.silent)

    def has_news(self) -> bool:
        return any(flow.has_news for flow in self.flows.values())

    def join(self, other: HeldBatch) -> None:
        self.flows |= other.flows
        self.silent |= other.silent

    def keep(self, request_ids: Collection[int]) -> None:
        """Forget all other requests; those that run are ended."""
        for request_id in [request_id for request_id in self.flows if request_id not in request_ids]:
            self.flows.pop(request_id).cancel()
        self.silent = {key: tokens for key, tokens in self.silent.items() if key in request_ids}


class BatchStore:
    """The batches by id."""

    def __init__(self) -> None:
        self._batches: dict[int, HeldBatch] = {}

    def __iter__(self) -> Iterator[HeldBatch]:
        return iter(self._batches.values())

    def __len__(self) -> int:
        return len(self._batches)

    def has_news(self) -> bool:
        return any(batch.has_news() for batch in self)

    def get(self, batch_id: int) -> HeldBatch:
        """Raises UnknownBatchError."""
        if batch_id not in self._batches:
            raise UnknownBatchError(batch_id)
        return self._batches[batch_id]

    def put(self, batch: HeldBatch) -> None:
        """Hold a batch; whatever had its id is dropped."""
        if self._batches.get(batch.id) is not batch:
            self.drop(batch.id)
            self._batches[batch.id] = batch

    def join(self, batch_ids: Sequence[int]) -> HeldBatch:
        """Make one batch of several, under the first one's id.

        Raises:
            UnknownBatchError: one of them is not here; nothing has changed then.
        """
        first, *others = [self.get(batch_id) for batch_id in dict.fromkeys(batch_ids)]
        for other in others:
            first.join(other)
            del self._batches[other.id]
        return first

    def forget(self, batch: HeldBatch) -> None:
        """A batch with no request left."""
        if self._batches.get(batch.id) is batch:
            del self._batches[batch.id]

    def drop(self, batch_id: int) -> None:
        """End a batch's requests. One that is not here needs no dropping."""
        batch = self._batches.pop(batch_id, None)
        if batch is not None:
            batch.keep(())

    def drop_all(self, batch_ids: Iterable[int] | None = None) -> None:
        """Drop the named batches; without names, all."""
        for batch_id in list(self._batches if batch_ids is None else batch_ids):
            self.drop(batch_id)
