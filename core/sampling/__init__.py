"""Logits to tokens: the sampler, what it must know of a sequence, and what it answers."""

from pageport.core.sampling.bans import bad_word_token_ids, validate_for_vocabulary
from pageport.core.sampling.grammar import GrammarCompiler
from pageport.core.sampling.logprobs import TokenLogprobs
from pageport.core.sampling.sampler import SampledTokens, Sampler
from pageport.core.sampling.state import SamplingState

__all__ = [
    "GrammarCompiler",
    "SampledTokens",
    "Sampler",
    "SamplingState",
    "TokenLogprobs",
    "bad_word_token_ids",
    "validate_for_vocabulary",
]
