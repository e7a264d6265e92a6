"""A client's grammar, checked before it costs the engine anything."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from pageport.backends.tgi_adapter.router.errors import invalid
from pageport.backends.tgi_adapter.router.schemas import (
    GrammarBody,
    JsonSchemaGrammar,
    RegexGrammar,
)
from pageport.core import Grammar, GrammarKind

_FIELD = "grammar"


def read_grammar(body: GrammarBody, *, strict: bool) -> Grammar | None:
    """The engine's form of it; None for an empty regular expression, which allows everything.

    An expression is not looked at here, as in TGI: the engine refuses it, for this request alone.

    Raises:
        RouterError: it is not a JSON schema, or one that cannot be honoured.
    """
    if isinstance(body, RegexGrammar):
        return Grammar(GrammarKind.REGEX, body.value) if body.value else None
    schema = body.value.schema_ if isinstance(body, JsonSchemaGrammar) else body.value
    return schema_grammar(_decoded(schema), strict=strict)


def schema_grammar(schema: Any, *, strict: bool = False) -> Grammar:
    """A JSON schema that came in a request.

    Raises:
        RouterError: it is not valid, or uses what cannot be honoured; without `properties` (or a reference to them),
            as in TGI; with `strict`, references.
    """
    if not isinstance(schema, dict):
        raise invalid(_FIELD, f"the schema must be a JSON object (given: {schema!r:.100})")
    references = "$defs" in schema or "$ref" in schema
    if strict and references:
        raise invalid(_FIELD, "a schema with $defs or $ref is refused in strict mode")
    if "properties" not in schema and not references:
        raise invalid(
            _FIELD, f"the schema must have `properties` (given: {', '.join(schema) or 'an empty object'})"
        )
    text = json.dumps(schema, ensure_ascii=False)
    problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text))
    if problem:
        raise invalid(_FIELD, f"the schema cannot be honoured: {problem}")
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def _decoded(schema: Any) -> Any:
    """TGI takes a schema as JSON text too."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise invalid(
            _FIELD, f"the text of the schema is not JSON: {error} (given: {schema!r:.100})"
        ) from None
