"""Logits to tokens: the sampler, what it must know of a sequence, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pageport.core.sampling.bans import bad_word_token_ids, validate_for_vocabulary
from pageport.core.sampling.logprobs import TokenLogprobs
from pageport.core.sampling.sampler import SampledTokens, Sampler
from pageport.core.sampling.state import SamplingState

if TYPE_CHECKING:
    from pageport.core.sampling.grammar import GrammarCompiler

__all__ = [
    "GrammarCompiler",
    "SampledTokens",
    "Sampler",
    "SamplingState",
    "TokenLogprobs",
    "bad_word_token_ids",
    "validate_for_vocabulary",
]


def __getattr__(name: str) -> object:
    """The compiler loads on first use: a machine without llguidance can sample, only not with grammars."""
    if name != "GrammarCompiler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pageport.core.sampling.grammar import GrammarCompiler

    return GrammarCompiler
