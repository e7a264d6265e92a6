"""Grammars in llguidance's notation, and what is wrong with one. No tensors: clients check before they ask."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits

from pageport.core.closed_schema import close_objects
from pageport.core.errors import InvalidRequestError
from pageport.core.sampling_params import Grammar, GrammarKind

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# One spelling, that of Python's json module: a small model that may write any white space writes little else.
_JSON_SPELLING: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


def parser_limits() -> LLParserLimits:
    """What one grammar may cost. A state of its automaton takes up to 2 kB."""
    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def check_grammar(grammar: Grammar) -> None:
    """Refuse what no engine could follow. 0.5 ms for an expression or a schema of ordinary size.

    Raises:
        InvalidRequestError: saying what in the expression or schema is wrong or not supported.
    """
    problem = LLMatcher.validate_grammar(translate(grammar), limits=parser_limits())
    if problem:
        raise refusal(grammar, problem)


def translate(grammar: Grammar) -> str:
    """The grammar in llguidance's notation; of an expression only `check_grammar` says whether it is one.

    Raises:
        InvalidRequestError: a schema is no JSON object.
    """
    if grammar.kind is GrammarKind.REGEX:
        return LLMatcher.grammar_from_regex(grammar.source)
    try:
        schema: Any = json.loads(grammar.source)
        if not isinstance(schema, dict):
            raise refusal(grammar, "it must be a JSON object")
        close_objects(schema)
        return LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_SPELLING)
    except RecursionError:
        raise refusal(grammar, "it is nested too deeply") from None
    except ValueError as error:
        raise refusal(grammar, f"it is not JSON: {error}") from None


def refusal(grammar: Grammar, problem: str) -> InvalidRequestError:
    """Our words around the library's reason."""
    kind = "regular expression" if grammar.kind is GrammarKind.REGEX else "JSON schema"
    return InvalidRequestError(
        "grammar", f"this {kind} cannot be followed: {_reason(problem)} (given: {grammar.source:.200})"
    )


def _reason(problem: str) -> str:
    """The library quotes the grammar in its own notation; what is wrong stands in one line of it."""
    for line in problem.splitlines():
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    return problem.splitlines()[0].rpartition("(in regex): ")[2]
