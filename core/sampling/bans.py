"""Tokens that may not come next, and tokens whose logits the client shifts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from pageport.core.errors import InvalidRequestError
from pageport.core.sampling.state import SamplingState

if TYPE_CHECKING:
    from pageport.core.sampling_params import SamplingParams


def validate_for_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """Check the token ids in the parameters against the model's vocabulary.

    Raises:
        InvalidRequestError: naming the field, the limit and the token id.
    """
    for name, token_ids in (
        ("logit_bias", params.logit_bias or ()),
        ("stop_token_ids", params.stop_token_ids),
    ):
        for token in token_ids:
            if not 0 <= token < vocab_size:
                raise InvalidRequestError(
                    name, f"token id {token} is not in the vocabulary, 0 to {vocab_size - 1}"
                )


def bad_word_token_ids(
    encode: Callable[[str], list[int]], words: Iterable[str]
) -> tuple[tuple[int, ...], ...]:
    """The token sequences that spell bad words, at the start of a text and after a space.

    vLLM takes the second spelling only where it has as many tokens as the first, which lets a word of two
    tokens that is one token after a space slip through; here both are always banned.

    Args:
        encode: text to token ids, without special tokens.
    """
    spellings = (space + word.lstrip() for word in words for space in ("", " "))
    return tuple(dict.fromkeys(tuple(ids) for ids in map(encode, spellings) if ids))


def has_bans(state: SamplingState) -> bool:
    return bool(state.bad_words_ids) or state.params.min_tokens > 0


def banned_token_ids(state: SamplingState) -> list[int]:
    """What may not be the next token of this sequence.

    As in vLLM V1: the last token of a bad word whose other tokens are the end of the output (the prompt
    does not count), and all end and stop tokens while the output is shorter than `min_tokens`.
    """
    output = state.output_token_ids
    banned = []
    for *prefix, last in state.bad_words_ids:
        if not prefix or output[-len(prefix) :] == prefix:
            banned.append(last)
    if len(output) < state.params.min_tokens:
        banned += state.eos_token_ids
        banned += state.params.stop_token_ids
    return banned


def apply_bans(logits: torch.Tensor, rows: Sequence[int], states: Sequence[SamplingState]) -> None:
    """Make banned tokens impossible, in place. Ids outside the vocabulary need no ban.

    Args:
        logits: float32 [R, V].
        rows: which rows; `states` are theirs.
    """
    vocab_size = logits.shape[1]
    at_rows: list[int] = []
    at_ids: list[int] = []
    for row, state in zip(rows, states, strict=True):
        banned = [token for token in banned_token_ids(state) if 0 <= token < vocab_size]
        at_ids += banned
        at_rows += [row] * len(banned)
    if at_ids:
        where = torch.tensor([at_rows, at_ids], device=logits.device)
        logits[where[0], where[1]] = -torch.inf


def apply_logit_bias(logits: torch.Tensor, rows: Sequence[int], states: Sequence[SamplingState]) -> None:
    """Add each client's `logit_bias`, in place; arguments as `apply_bans`."""
    biases = [state.params.logit_bias or {} for state in states]
    at_rows = [row for row, bias in zip(rows, biases, strict=True) for _ in bias]
    at_ids = [token for bias in biases for token in bias]
    where = torch.tensor([at_rows, at_ids], device=logits.device)
    added = torch.tensor([value for bias in biases for value in bias.values()], device=logits.device)
    logits[where[0], where[1]] += added
