"""Text that must match a regular expression or a JSON schema: which tokens may come next.

The automata are `llguidance`'s, which builds them as the text grows (derivatives of regular expressions, Earley's
parser for schemas): a grammar is ready in a millisecond, a mask takes 10 to 100 us a row.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llguidance.numpy
import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from pageport.core.errors import InvalidRequestError
from pageport.core.sampling_params import Grammar, GrammarKind

logger = logging.getLogger("pageport.engine")

_REMEMBERED = 64

# A small model that may write any white space writes little else: one spelling, the one of Python's json module.
_JSON_SPELLING: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# Keywords of JSON schema: under these, names lead to schemas; under these, anything is data; these open an object.
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"enum", "const", "default", "examples"})
_OPENING = frozenset({"additionalProperties", "patternProperties", "unevaluatedProperties"})


class GrammarCompiler:
    """Makes matchers for one tokenizer; equal grammars are compiled once.

    Args:
        vocab_size: width of the logits, which may exceed the tokenizer's.
        eos_token_ids: may come where the text matches as it stands, and nowhere else.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._vocab_size = vocab_size
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        # The tokenizer's trie takes some tenths of a second: made aside, while the engine starts.
        with ThreadPoolExecutor(1, thread_name_prefix="grammar") as worker:
            self._tokenizer = worker.submit(_tokenizer_trie, tokenizer, vocab_size, eos_token_ids)
            worker.shutdown(wait=False)

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """A matcher at the beginning of the text.

        Raises:
            InvalidRequestError: it is no grammar.
        """
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = LLMatcher(self._tokenizer.result(), _source(grammar), log_level=0)
            if compiled.is_error():
                raise InvalidRequestError("grammar", _explain(grammar, compiled.get_error()))
            self._compiled[grammar] = compiled
            if len(self._compiled) > _REMEMBERED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarMatcher(compiled.deep_copy(), self._vocab_size)


class GrammarMatcher:
    """One sequence's place in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def accept(self, token: int) -> None:
        """Move on by a token. After one that the grammar does not allow, no token is possible any more."""
        self._matcher.consume_token(token)

    def forbidden(self) -> torch.Tensor:
        """bool [vocab_size], on the CPU: True where a token cannot come next."""
        bits = llguidance.numpy.allocate_token_bitmask(1, self._vocab_size)
        llguidance.numpy.fill_next_token_bitmask(self._matcher, bits, 0)
        allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: self._vocab_size]
        return torch.from_numpy(allowed == 0)


def apply_grammars(logits: torch.Tensor, rows: list[int], matchers: list[GrammarMatcher]) -> None:
    """Make tokens impossible that would break a row's grammar, in place.

    Args:
        logits: float32 [R, V].
    """
    for row, matcher in zip(rows, matchers, strict=True):
        logits[row].masked_fill_(matcher.forbidden().to(logits.device), -torch.inf)


def _tokenizer_trie(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    return LLTokenizer(tokenizer.to_str(), n_vocab=vocab_size, eos_token=list(eos_token_ids) or None)


def _source(grammar: Grammar) -> str:
    """Raises InvalidRequestError where a schema is no JSON object."""
    if grammar.kind is GrammarKind.REGEX:
        return str(LLMatcher.grammar_from_regex(grammar.source))
    try:
        schema = _closed(json.loads(grammar.source))
        return str(LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_SPELLING))
    except (ValueError, TypeError) as error:
        raise InvalidRequestError("grammar", f"is no JSON schema: {error}") from None


def _closed(schema: Any) -> Any:
    """The schema with objects that have just the properties it names.

    A schema that does not speak of additional properties allows them; a model that may write any does not stop.
    """
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: {name: _closed(item) for name, item in value.items()}
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict)
        else value
        if key in _VALUES
        else _closed(value)
        for key, value in schema.items()
    }
    if "properties" in schema and not _OPENING & schema.keys():
        closed["additionalProperties"] = False
    return closed


def _explain(grammar: Grammar, problem: str) -> str:
    """The library quotes the grammar in its own notation; what is wrong stands in the line that says `error`."""
    reasons = [line.partition("error: ")[2] for line in problem.splitlines() if "error: " in line]
    reason = reasons[0] if reasons else problem.splitlines()[0]
    kind = "regular expression" if grammar.kind is GrammarKind.REGEX else "JSON schema"
    return f"is no {kind} that can be followed: {reason} (given: {grammar.source:.200})"
