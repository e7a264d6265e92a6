"""Grammars over a real vocabulary of 49,152 tokens, at temperatures where a model would write anything."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from pageport.core import (
    Engine,
    EngineRequest,
    FinishReason,
    Grammar,
    GrammarKind,
    RequestOutput,
    SamplingParams,
    load_tokenizer,
    parse_engine_config,
)

SEEDS = range(6)


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=12)
    kind: Literal["town", "village"]
    people: int = Field(ge=0, le=10_000)
    near: list[City] = Field(default=[], max_length=1)
    old: bool | None = None


EXPRESSIONS = [
    r"[0-9]{4}-(0[1-9]|1[0-2])",
    r"((25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|[01]?[0-9]?[0-9])",
    r"[가-힣]{2,4}",
    r"(The|An?) [a-z]{1,9}( [a-z]{1,9}){0,3}\.",
    r"<\|im_end\|>[🙂🙃]{2}",
    r'\{([ ]?"function"[ ]?:[ ]?(\{[ ]?"_name"[ ]?:[ ]?"(a|b)"[ ]?\}))?[ ]?\}',
]


def answers(model: Path, grammars: list[Grammar], **params: Any) -> dict[str, RequestOutput]:
    """Each grammar's answer for each seed, all at once."""
    engine = Engine(
        parse_engine_config({"model": model, "max_model_len": 512, "kv_cache_memory_bytes": 1 << 28})
    )
    prompt = tuple(load_tokenizer(model).encode("Write something.\n").ids)
    for number, grammar in enumerate(grammars):
        for seed in SEEDS:
            asked = SamplingParams(grammar=grammar, seed=seed, max_tokens=90, **params)
            engine.add_request(EngineRequest(f"{number} {seed}", prompt, asked, time.monotonic(), seed))
    outputs: dict[str, RequestOutput] = {}
    while engine.has_work:
        for output in engine.step():
            if output.request_id in outputs:
                outputs[output.request_id].merge(output)
            else:
                outputs[output.request_id] = output
    engine.check_integrity()
    return outputs


@pytest.fixture(scope="module")
def outputs(demo_model: Path) -> dict[str, RequestOutput]:
    grammars = [Grammar(GrammarKind.REGEX, expression) for expression in EXPRESSIONS]
    schema = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(City.model_json_schema()))
    return answers(demo_model, [*grammars, schema], temperature=3.0)


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)), ids=EXPRESSIONS.__getitem__)
def test_expressions(outputs: dict[str, RequestOutput], number: int) -> None:
    texts = set()
    for seed in SEEDS:
        output = outputs[f"{number} {seed}"]
        assert output.finish_reason is FinishReason.STOP
        assert re.fullmatch(EXPRESSIONS[number], output.text)
        texts.add(output.text)
    assert len(texts) > 1


def test_a_schema_with_references_to_itself(outputs: dict[str, RequestOutput]) -> None:
    ended = [
        output
        for seed in SEEDS
        if (output := outputs[f"{len(EXPRESSIONS)} {seed}"]).finish_reason is FinishReason.STOP
    ]
    assert ended
    for output in ended:
        City.model_validate_json(output.text)
