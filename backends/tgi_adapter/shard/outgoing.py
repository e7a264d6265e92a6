"""Events and batches as messages, in either version of the protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pageport.backends.tgi_adapter.generation import GeneratedText, StopReason, Token, TokenEvent
from pageport.backends.tgi_adapter.shard.batches import HeldBatch

_REASONS = {StopReason.LENGTH: 0, StopReason.EOS_TOKEN: 1, StopReason.STOP_SEQUENCE: 2}


def write_generation(message: Any, request_id: int, events: Sequence[TokenEvent]) -> None:
    """Fill a `Generation` with what one call brings one request; `events` is not empty."""
    message.request_id = request_id
    _write_tokens(message.tokens, [event.token for event in events])
    if events[0].prefill:
        prefill = message.prefill_tokens
        prefill.ids.extend([token.id for token in events[0].prefill])
        prefill.logprobs.extend(
            [math.nan if token.logprob is None else token.logprob for token in events[0].prefill]
        )
        prefill.texts.extend([token.text for token in events[0].prefill])
    if any(event.top_tokens for event in events):
        for event in events:
            _write_tokens(message.top_tokens.add(), event.top_tokens)
    generated = events[-1].generated
    if generated is not None:
        _write_generated_text(message.generated_text, generated)


def _write_tokens(message: Any, tokens: Sequence[Token]) -> None:
    message.ids.extend([token.id for token in tokens])
    message.logprobs.extend([token.logprob for token in tokens])
    message.texts.extend([token.text for token in tokens])
    message.is_special.extend([token.special for token in tokens])


def _write_generated_text(message: Any, generated: GeneratedText) -> None:
    message.text = generated.text
    message.generated_tokens = generated.generated_tokens
    message.finish_reason = _REASONS[generated.finish_reason]
    if generated.seed is not None:
        message.seed = generated.seed


def write_batch(message: Any, batch: HeldBatch) -> None:
    """Fill a `CachedBatch`."""
    message.id = batch.id
    message.request_ids.extend(batch.request_ids)
    message.size = len(batch.request_ids)
    message.max_tokens = batch.max_tokens
    if "current_tokens" in message.DESCRIPTOR.fields_by_name:
        message.current_tokens = batch.current_tokens
