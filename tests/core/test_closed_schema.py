"""Which objects of a JSON schema are closed, and which schemas are left as they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pageport.core.closed_schema import close_objects

CLOSED = {"additionalProperties": False}
ONE = {"properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (ONE, ONE | CLOSED),
        ({"type": "object"}, {"type": "object"}),
        (ONE | {"additionalProperties": True}, ONE | {"additionalProperties": True}),
        (ONE | {"patternProperties": {"^x": ONE}}, ONE | {"patternProperties": {"^x": ONE | CLOSED}}),
        ({"properties": {"a": ONE}}, {"properties": {"a": ONE | CLOSED}} | CLOSED),
        ({"items": ONE}, {"items": ONE | CLOSED}),
        ({"prefixItems": [ONE], "items": False}, {"prefixItems": [ONE | CLOSED], "items": False}),
        ({"anyOf": [ONE, {"type": "null"}]}, {"anyOf": [ONE | CLOSED, {"type": "null"}]}),
        ({"$ref": "#/$defs/d", "$defs": {"d": ONE}}, {"$ref": "#/$defs/d", "$defs": {"d": ONE | CLOSED}}),
        ({"enum": [ONE], "default": ONE, "const": ONE}, {"enum": [ONE], "default": ONE, "const": ONE}),
    ],
)
def test_objects_that_name_properties_have_no_others(schema: dict[str, Any], closed: dict[str, Any]) -> None:
    given = copy.deepcopy(schema)
    close_objects(given)
    assert given == closed


def test_properties_may_be_called_like_keywords() -> None:
    schema: dict[str, Any] = {"properties": {"properties": {"type": "string"}, "allOf": ONE | {}}}
    close_objects(schema)
    assert schema == {"properties": {"properties": {"type": "string"}, "allOf": ONE | CLOSED}} | CLOSED


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [ONE, {"properties": {"b": True}}]},
        ONE | {"anyOf": [{"required": ["a"]}, {"properties": {"b": True}}]},
        {"properties": {"x": ONE | {"$ref": "#/$defs/d"}}, "$defs": {"d": ONE}},
        {"if": ONE, "then": ONE, "properties": {}},
    ],
)
def test_where_an_object_has_to_fit_several_schemas_all_stay_open(schema: dict[str, Any]) -> None:
    given = copy.deepcopy(schema)
    close_objects(given)
    assert given == schema
