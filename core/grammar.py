"""Grammars in llguidance's notation, and what is wrong with one. No tensors: clients check before they ask."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits

from pageport.core.closed_schema import close_objects
from pageport.core.errors import InvalidRequestError
from pageport.core.sampling_modes import GrammarKind
from pageport.core.sampling_params import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# At most one space where JSON allows white space, as in the expressions that TGI's router makes of schemas: a small
# model that may write any white space writes little else.
_JSON_SPELLING: JsonCompileOptions = {"whitespace_pattern": "[ ]?"}

# Where only one text can follow, the library would allow just the tokens that its tokenizer cuts that text into. Any
# other tokens spell it as well, and TGI's log-probabilities count them in.
_NO_FORCING = '%llguidance {"no_forcing": true}\n'

# An escaped character, a class, or a repetition without a minimum.
_NO_MINIMUM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{,(\d+)\}", re.DOTALL)


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
        written = LLMatcher.grammar_from_regex(_with_minimum(grammar.source))
        return f"{_NO_FORCING}{json.loads(written)['grammars'][0]['lark_grammar']}"
    try:
        schema: Any = json.loads(grammar.source)
        if not isinstance(schema, dict):
            raise refusal(grammar, "it must be a JSON object")
        close_objects(schema)
        written = LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_SPELLING)
        return f"{_NO_FORCING}start: %json {json.dumps(json.loads(written)['grammars'][0]['json_schema'])}"
    except RecursionError:
        raise refusal(grammar, "it is nested too deeply") from None
    except ValueError as error:
        raise refusal(grammar, f"it is not JSON: {error}") from None


def _with_minimum(expression: str) -> str:
    """`x{,3}`, which TGI's router writes, as `x{0,3}`, which the library understands."""
    return _NO_MINIMUM.sub(lambda match: f"{{0,{match[1]}}}" if match[1] else match[0], expression)


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
    reason = problem.splitlines()[0]
    for before in ("(in regex): ", "failed to compile JSON schema: "):
        reason = reason.rpartition(before)[2]
    return reason
