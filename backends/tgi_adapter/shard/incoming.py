"""A request as the router sends it, in either version of the protocol, read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.parameters import GenerationParameters
from pageport.backends.tgi_adapter.shard.prompt import tokenize_prompt
from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import Grammar, GrammarKind, PageportError

# GrammarType, the same in both versions.
_GRAMMAR_KINDS = {1: GrammarKind.JSON_SCHEMA, 2: GrammarKind.REGEX}


@dataclass(frozen=True, slots=True)
class NewRequest:
    """One request of a `Prefill`.

    Attributes:
        problem: why it cannot be run, where it cannot; the other fields are empty then.
    """

    id: int
    prompt_ids: list[int] = field(default_factory=list)
    parameters: GenerationParameters = field(default_factory=lambda: GenerationParameters(1, seed=0))
    problem: str | None = None


def read_request(request: Any, tokenizer: Tokenizer, settings: ShardSettings) -> NewRequest:
    """Read a `Request`. Never raises for what it holds: one bad request must not end those that came with it.

    Blocks, slots, `cache_len` and `chunk_len` are the router's bookkeeping and are not read: the engine allocates,
    caches and chunks by itself. An adapter that nobody knows is the base model, and images are left out.
    """
    try:
        parameters = _parameters(request, settings)
        prompt_ids = _prompt(request, tokenizer)
    except (PageportError, ValueError) as error:
        return NewRequest(request.id, problem=str(error))
    if not prompt_ids:
        return NewRequest(request.id, problem="inputs: the prompt has no tokens")
    return NewRequest(request.id, prompt_ids, parameters)


def prompt_characters(request: Any) -> int:
    """How long the text to tokenise is."""
    return sum(len(text) for text in _texts(request))


def _texts(request: Any) -> list[str]:
    chunks = request.input_chunks.chunks if _has_field(request, "input_chunks") else []
    return [chunk.text for chunk in chunks] or [request.inputs]


def _prompt(request: Any, tokenizer: Tokenizer) -> list[int]:
    """The prompt, cut on the left. The second version of the protocol adds special tokens always."""
    special = request.add_special_tokens if _has_field(request, "add_special_tokens") else True
    return tokenize_prompt(tokenizer, "".join(_texts(request)), request.truncate, add_special_tokens=special)


def _parameters(request: Any, settings: ShardSettings) -> GenerationParameters:
    chosen, stopping = request.parameters, request.stopping_parameters
    parameters = GenerationParameters(
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
    parameters.to_sampling_params()  # raises what is wrong with them
    return parameters


def _grammar(chosen: Any) -> Grammar | None:
    kind = _GRAMMAR_KINDS.get(chosen.grammar_type)
    return Grammar(kind, chosen.grammar) if kind is not None and chosen.grammar else None


def _has_field(message: Any, name: str) -> bool:
    return name in message.DESCRIPTOR.fields_by_name
