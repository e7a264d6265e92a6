"""The published OpenAPI document: TGI's shape, and the router keeps to it whatever it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from router_harness import serving
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance
from scripted_engine import Script
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.openapi import openapi_document

SHAPE = json.loads((Path(__file__).parents[2] / "data" / "tgi" / "openapi-shape.json").read_text())

# Where the document says more than TGI's, or corrects it.
DIFFERENCES = {
    "ChatRequest.properties.logit_bias",
    "ChatRequest.properties.max_completion_tokens",
    "ChatRequest.properties.response_format",
    "ChatRequest.properties.stop",
    "CompletionRequest.properties.n",
    "CompletionRequest.properties.stop",
    "FunctionDefinition.required",
    *(
        f"GenerateParameters.properties.{name}"
        for name in (
            "best_of",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
            "temperature",
            "top_k",
            "top_n_tokens",
            "top_p",
            "typical_p",
        )
    ),
    "Prompt",
    "SagemakerResponse.oneOf",
}


def without_words(document: dict[str, Any]) -> dict[str, Any]:
    paths = {
        path: {
            method: {k: v for k, v in operation.items() if k != "summary"}
            for method, operation in methods.items()
        }
        for path, methods in document["paths"].items()
    }
    return {**{k: v for k, v in document.items() if k != "info"}, "paths": paths}


def test_strict_is_the_recorded_shape() -> None:
    assert without_words(openapi_document(strict=True)) == SHAPE


def test_the_supersets_and_nothing_else_are_added() -> None:
    document = without_words(openapi_document(strict=False))
    paths = {path for path in SHAPE["paths"] if document["paths"][path] != SHAPE["paths"][path]}
    assert paths == {"/v1/models"}, "TGI's document has one model there, its answer a list"
    assert document["paths"].keys() == SHAPE["paths"].keys()
    differing = set()
    for name, schema in document["components"]["schemas"].items():
        recorded = SHAPE["components"]["schemas"][name]
        for key in {*schema, *recorded}:
            mine, theirs = schema.get(key), recorded.get(key)
            if mine == theirs:
                continue
            if key == "properties":
                changed = {field for field in {*mine, *theirs} if mine.get(field) != theirs.get(field)}
                differing |= {f"{name}.properties.{field}" for field in changed}
            else:
                differing.add(name if name == "Prompt" else f"{name}.{key}")
    assert differing == DIFFERENCES


def test_every_summary_is_said() -> None:
    operations = [o for methods in openapi_document(strict=False)["paths"].values() for o in methods.values()]
    assert all(operation["summary"] for operation in operations)


@pytest.fixture(scope="module")
def api(tokenizer: Tokenizer, demo_model: Path) -> Iterator[Any]:
    """The document as it is served, and the router behind it."""
    with serving(Script(), tokenizer, demo_model) as url:
        yield schemathesis.openapi.from_url(f"{url}/api-doc/openapi.json")


# Called by hypothesis itself: schemathesis' pytest plugin does not run under this pytest.
@pytest.mark.parametrize(
    ("method", "path"), [(m, p) for p, methods in SHAPE["paths"].items() for m in methods]
)
def test_the_router_keeps_to_it(api: Any, method: str, path: str) -> None:
    """No server error, and answers of the documented shape, whatever is sent within the document."""
    operation = api[path][method.upper()]

    @settings(
        max_examples=12, deadline=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def call(case: schemathesis.Case) -> None:
        response = case.call()
        streams = response.headers["content-type"] == ["text/event-stream"] if response.content else False
        # The document has no place for the error events of streams, which come with status 200.
        checks = [not_a_server_error] if streams else [not_a_server_error, response_schema_conformance]
        case.validate_response(response, checks=checks)

    call()
