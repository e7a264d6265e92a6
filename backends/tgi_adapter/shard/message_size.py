"""Answers that the router can read: it takes at most 4 MiB at once, and fails the whole batch above."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from pageport.backends.tgi_adapter.generation import TokenEvent

logger = logging.getLogger("pageport.tgi")

# The router reads messages of at most 4 MiB. The rest is for the batch: up to eleven bytes for each request in it.
MAX_EVENT_BYTES = 4 * 2**20 - 2**17


def event_bytes(event: TokenEvent) -> int:
    """An upper bound of what an event takes in a message."""
    size = 64 + _token_bytes(event.token.text)
    for token in event.top_tokens:
        size += _token_bytes(token.text)
    for entry in event.prefill:
        size += _token_bytes(entry.text)
    if event.generated is not None:
        size += 32 + len(event.generated.text.encode())
    return size


def fitting(request_id: int, events: Sequence[TokenEvent], room: int) -> tuple[list[TokenEvent], int]:
    """The first of the events that fit into so many bytes together, and the bytes they take.

    An event that no message could hold is given without the prompt's log-probabilities, which make it so large.
    """
    chosen: list[TokenEvent] = []
    used = 0
    for event in events:
        size = event_bytes(event)
        if size > MAX_EVENT_BYTES and event.prefill:
            logger.warning(
                "request %d: log-probabilities of %d prompt tokens are left out: the router reads at most 4 MiB",
                request_id,
                len(event.prefill),
            )
            event = replace(event, prefill=())
            size = event_bytes(event)
        if used + size > room:
            break
        chosen.append(event)
        used += size
    return chosen, used


def _token_bytes(text: str) -> int:
    return 18 + len(text.encode())
