"""Text that must match a regular expression or a JSON schema: which tokens may come next.

The automata are llguidance's, which grow with the text (derivatives of regular expressions, Earley's parser for
schemas). Measured with 49,152 tokens: a matcher for a new expression 0.5 ms, for a schema 0.5 ms and 0.05 ms for each
of its properties, for a known grammar 0.01 ms; a mask 0.003 ms a row, and up to 0.4 ms where the text comes to a place
for the first time.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import llguidance.numpy
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from pageport.core.errors import InvalidRequestError
from pageport.core.grammar import parser_limits, refusal, translate
from pageport.core.sampling_params import Grammar

_REMEMBERED = 64


class GrammarCompiler:
    """Makes matchers for one tokenizer, and remembers the grammars used last.

    Args:
        vocab_size: width of the logits, which may exceed the tokenizer's.
        eos_token_ids: they may come where the text matches as it stands, and nowhere else.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        # Some tenths of a second, beside whatever else an engine does as it starts.
        worker = ThreadPoolExecutor(1, thread_name_prefix="token-trie")
        self._trie = worker.submit(_build_token_trie, tokenizer, vocab_size, eos_token_ids)
        worker.shutdown(wait=False)

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """A matcher at the beginning of the text.

        Raises:
            InvalidRequestError: it is no grammar, no text matches it, or none can be followed with this model (no end
                token, or a tokenizer of a kind that llguidance does not know).
        """
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compile(grammar)
            self._compiled[grammar] = compiled
            if len(self._compiled) > _REMEMBERED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarMatcher(compiled.deep_copy(), self._token_trie().vocab_size)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        matcher = LLMatcher(self._token_trie(), translate(grammar), log_level=0, limits=parser_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # now, because every sequence begins here; fails where no text matches
        if matcher.is_error():
            raise refusal(grammar, matcher.get_error())
        return matcher

    def _token_trie(self) -> LLTokenizer:
        try:
            return self._trie.result()
        except Exception as error:
            problem = f"cannot be followed with the tokenizer of this model: {error}"
            raise InvalidRequestError("grammar", problem) from error


class GrammarMatcher:
    """One sequence's place in its grammar.

    Attributes:
        vocab_size: of the trie, at least that of the logits.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self.vocab_size = vocab_size

    @property
    def complete(self) -> bool:
        """The text matches, and nothing may be added."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def problem(self) -> str:
        """Why the text cannot be continued; empty while it can."""
        return self._matcher.get_error().partition("\n")[0]

    def accept(self, token: int) -> bool:
        """Move on by a token. False: the grammar does not allow it, nor anything after it."""
        return self._matcher.consume_token(token)

    def write_allowed(self, bits: npt.NDArray[np.int32]) -> None:
        """Set bit i of `bits` [ceil(vocab_size / 32)] where token i may come next, and clear it elsewhere."""
        llguidance.numpy.fill_next_token_bitmask(self._matcher, bits[None])


def _build_token_trie(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    """Each token's bytes in a trie: 0.2 s and 50 MB for 49,152 tokens. Special tokens are no text in it.

    Raises:
        ValueError: there is no end token, or the tokenizer is of a kind that llguidance does not know.
    """
    if not eos_token_ids:
        raise ValueError("it has no end token")
    return LLTokenizer(
        tokenizer.to_str(),
        n_vocab=max(vocab_size, tokenizer.get_vocab_size()),
        eos_token=list(eos_token_ids),
    )
