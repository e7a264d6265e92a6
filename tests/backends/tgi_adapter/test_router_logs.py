"""Log lines that readers of TGI's log can read."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from router_harness import recorded_settings, running_router
from tokenizers import Tokenizer

from pageport.backends.tgi_adapter.router.logs import JsonFormatter, TextFormatter, describe, duration
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.036497052, "36.497052ms"),
        (0.000325288, "325.288µs"),
        (1.5, "1.5s"),
        (2.0, "2s"),
        (4e-9, "4ns"),
        (-1.0, "0ns"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_parameters() -> None:
    parameters = GenerateParameters.model_validate(
        {"temperature": 0.7, "do_sample": True, "max_new_tokens": 3, "stop": ["ten"], "adapter_id": "a"}
    )
    assert describe(parameters) == (
        "GenerateParameters { best_of: None, temperature: Some(0.7), repetition_penalty: None, "
        "frequency_penalty: None, top_k: None, top_p: None, typical_p: None, do_sample: true, "
        'max_new_tokens: Some(3), return_full_text: None, stop: ["ten"], truncate: None, watermark: false, '
        "details: false, decoder_input_details: false, seed: None, top_n_tokens: None, grammar: None, "
        'adapter_id: Some("a") }'
    )


async def test_a_line_for_every_request(
    tokenizer: Tokenizer, demo_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pageport.tgi_adapter.router")
    async with running_router(recorded_settings(), tokenizer, demo_model) as (client, _):
        await client.post("/generate", json={"inputs": "Hi", "parameters": {"max_new_tokens": 3, "seed": 5}})
        await client.post("/generate_stream", json={"inputs": ""})
    success, failure = (json.loads(JsonFormatter().format(record)) for record in caplog.records)
    assert (success["level"], success["message"], success["span"]["name"]) == ("INFO", "Success", "generate")
    span = success["span"]
    assert (span["seed"], span["prompt_tokens"], span["generated_tokens"]) == ("Some(5)", 1, 3)
    for name in ("total_time", "validation_time", "queue_time", "inference_time", "time_per_token"):
        assert re.fullmatch(r"[\d.]+(ns|µs|ms|s)", span[name]), name
    assert (failure["level"], failure["span"]["name"]) == ("ERROR", "generate_stream")
    assert "inputs" in failure["message"]
    text = TextFormatter().format(caplog.records[0])
    assert re.match(
        r"\d{4}-\d\d-\d\dT[\d:.]+Z  INFO generate\{parameters=.* generated_tokens=3\}: .*: Success$", text
    )


def test_an_exception_is_part_of_the_line() -> None:
    try:
        raise ValueError("a bug on purpose")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("a.b", logging.CRITICAL, __file__, 1, "%s happened", ("it",), info)
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["target"]) == ("ERROR", "a.b")
    assert line["message"].startswith("it happened\nTraceback")
    assert "a bug on purpose" in line["message"]
    assert "a bug on purpose" in TextFormatter().format(record)
