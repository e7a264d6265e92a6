"""Between the wire's messages and ours, for both versions of the protocol."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.generation import GeneratedText, StopReason, Token, TokenEvent
from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.backends.tgi_adapter.shard.batches import HeldBatch
from pageport.backends.tgi_adapter.shard.prompt import tokenize_prompt
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import Grammar, GrammarKind

logger = logging.getLogger("pageport.tgi")

# The router reads messages of at most 4 MiB.
_MOST_BYTES = 4 * 2**20 - 2**16


def prompt_of(request: Any, tokenizer: Tokenizer) -> list[int]:
    """A request's prompt, cut on the left. Images are left out: there is no model for them yet."""
    text, special = request.inputs, True
    if "input_chunks" in request.DESCRIPTOR.fields_by_name:
        special = request.add_special_tokens
        if request.input_chunks.chunks:
            text = "".join(chunk.text for chunk in request.input_chunks.chunks)
    return tokenize_prompt(tokenizer, text, request.truncate, add_special_tokens=special)


def parameters_of(request: Any, settings: ShardSettings) -> GenerationParameters:
    """A request's parameters; an adapter that nobody knows is the base model, as in TGI."""
    chosen, stopping = request.parameters, request.stopping_parameters
    return GenerationParameters(
        max_new_tokens=stopping.max_new_tokens,
        seed=chosen.seed,
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        typical_p=chosen.typical_p,
        do_sample=chosen.do_sample,
        repetition_penalty=chosen.repetition_penalty,
        frequency_penalty=chosen.frequency_penalty,
        watermark=settings.watermark if chosen.watermark else None,
        grammar=_grammar(chosen),
        stop_sequences=tuple(stopping.stop_sequences),
        ignore_eos_token=stopping.ignore_eos_token,
        top_n_tokens=request.top_n_tokens,
        prefill_logprobs=request.prefill_logprobs and settings.prefill_logprobs,
    )


def _grammar(chosen: Any) -> Grammar | None:
    kinds = {1: GrammarKind.JSON_SCHEMA, 2: GrammarKind.REGEX}
    kind = kinds.get(chosen.grammar_type)
    return Grammar(kind, chosen.grammar) if kind is not None and chosen.grammar else None


def generation_message(pb: Any, request_id: int, events: Sequence[TokenEvent]) -> Any:
    """What one call brings one request; `events` is not empty."""
    message = pb.Generation(request_id=request_id, tokens=_tokens(pb, [event.token for event in events]))
    first, last = events[0], events[-1]
    if first.prefill:
        message.prefill_tokens.ids.extend([token.id for token in first.prefill])
        message.prefill_tokens.logprobs.extend(
            [math.nan if token.logprob is None else token.logprob for token in first.prefill]
        )
        message.prefill_tokens.texts.extend([token.text for token in first.prefill])
    if any(event.top_tokens for event in events):
        message.top_tokens.extend([_tokens(pb, event.top_tokens) for event in events])
    if last.generated is not None:
        message.generated_text.CopyFrom(_generated_text(pb, last.generated))
    return message


def _tokens(pb: Any, tokens: Sequence[Token]) -> Any:
    return pb.Tokens(
        ids=[token.id for token in tokens],
        logprobs=[token.logprob for token in tokens],
        texts=[token.text for token in tokens],
        is_special=[token.special for token in tokens],
    )


def _generated_text(pb: Any, generated: GeneratedText) -> Any:
    reasons = {
        StopReason.LENGTH: pb.FINISH_REASON_LENGTH,
        StopReason.EOS_TOKEN: pb.FINISH_REASON_EOS_TOKEN,
        StopReason.STOP_SEQUENCE: pb.FINISH_REASON_STOP_SEQUENCE,
    }
    return pb.GeneratedText(
        text=generated.text,
        generated_tokens=generated.generated_tokens,
        finish_reason=reasons[generated.finish_reason],
        seed=generated.seed,
    )


def cached_batch_message(pb: Any, batch: HeldBatch) -> Any:
    ids = batch.request_ids
    message = pb.CachedBatch(id=batch.id, request_ids=ids, size=len(ids), max_tokens=batch.max_tokens)
    if "current_tokens" in message.DESCRIPTOR.fields_by_name:
        message.current_tokens = batch.current_tokens
    return message


def keep_small(response: Any) -> None:
    """Leave out prompts' log-probabilities, the longest first, until the router can read the answer."""
    while response.ByteSize() > _MOST_BYTES:
        largest = max(response.generations, key=lambda generation: generation.prefill_tokens.ByteSize())
        if not largest.HasField("prefill_tokens"):
            return
        logger.warning(
            "request %d: log-probabilities of %d prompt tokens are left out; the router reads at most 4 MiB",
            largest.request_id,
            len(largest.prefill_tokens.ids),
        )
        largest.ClearField("prefill_tokens")
