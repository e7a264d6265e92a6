"""Unmodified client libraries against the embedded router, over HTTP, with recorded tokens from a scripted engine.

Every call of the recordings is made; what it came to on the real router is what must come back, and where that
refused what the library documents, what the library's documentation promises.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from router_harness import serving
from scripted_engine import Script
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
TOOL_CALL = '{"function": {"_name": "get_weather", "city": "Paris"}}'
NO_TOOL = '{"function": {"_name": "no_tool"}}'
CALLED = ["0", "get_weather", '{"city":"Paris"}']
STREAMED_CALL = ["get_weather", '{ "city": "Paris"}']  # the model's own spelling, token by token

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="the clients' environment was not made; see scripts/setup.sh"
)


@pytest.fixture(scope="module")
def urls(tokenizer: Tokenizer, demo_model: Path) -> Iterator[dict[str, str]]:
    scripts = {
        "plain": Script(),
        "tool": Script(TOOL_CALL),
        "json": Script('{"name": "Ada"}'),
        "failing": Script(prefill_error="out of blocks"),
    }
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(serving(script, tokenizer, demo_model))
            for name, script in scripts.items()
        }
        no_tool = serving(Script(" It is 18C."), tokenizer, demo_model, first=[Script(NO_TOOL)])
        yield {**urls, "no tool": stack.enter_context(no_tool)}


def run(script: str, *arguments: str) -> dict[str, Any]:
    command = [PYTHON, ROOT / "tests" / "clients" / script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads(done.stdout)
    return results


TOKENS = [[12584, " Deep", -0.25], [1380, " learning", -0.5], [314, " is", -0.75]]
PIECES = [" Deep", " learning", " is"]
THREE = " Deep learning is"
FOUR = [" Deep learning is a", "length"]


def test_huggingface_hub(urls: dict[str, str]) -> None:
    assert run("calls_huggingface_hub.py", urls["plain"], urls["tool"]) == {
        "text": f"Hi{THREE}",
        "details": [f"Hi{THREE}", "length", [[26843, None]], TOKENS],
        "stream": PIECES,
        "stream details": [
            [1, 12584, [12584, 12585], None],
            [2, 1380, [1380, 1381], None],
            [3, 314, [314, 315], f"Hi{THREE}"],
        ],
        "stop": "Hi Deep learning is a part",
        "every parameter": f"Hi{THREE}",
        "grammar": f"Hi{THREE}",
        "empty": {"error": "ValidationError", "status": None},
        "chat": [THREE, "length", 34],
        "chat stream": PIECES,
        "chat usage": [None, None, None, 34],
        "chat tools": CALLED,
        "chat tools stream": STREAMED_CALL,
        "format json": [THREE, "length", 34],
        "format schema": [THREE, "length", 34],
        "chat logprobs": [
            [" Deep", -0.25, [" Deep", " Bell"]],
            [" learning", -0.5, [" learning", " pur"]],
            [" is", -0.75, [" is", "ur"]],
        ],
        "health": {"error": "ValueError", "status": None},
        "info": {"error": "ValueError", "status": None},
    }


def test_text_generation(urls: dict[str, str]) -> None:
    plain = [THREE, "length", [], TOKENS, []]
    assert run("calls_text_generation.py", urls["plain"], urls["failing"]) == {
        "generate": plain,
        "details": [THREE, "length", [[26843, None]], TOKENS, [[12584, 12585], [1380, 1381], [314, 315]]],
        "stream": PIECES,
        "best_of": 1,
        "empty": {"error": "ValidationError", "status": None},
        "temperature 0": {"error": "ValidationError", "status": None},
        "stop": [
            " Deep learning is a part",
            "stop_sequence",
            [],
            [*TOKENS, [253, " a", -1.0], [599, " part", -1.25]],
            [],
        ],
        "chat": THREE,
        "chat stream": {"error": "AttributeError", "status": None},  # the library's own
        "failing stream": {"error": "GenerationError", "status": None},
        "failing": {"error": "GenerationError", "status": None},
    }


def test_openai(urls: dict[str, str]) -> None:
    results = run("calls_openai.py", urls["plain"], urls["tool"], urls["json"], urls["no tool"])
    invalid = {"error": "UnprocessableEntityError", "status": 422}
    missing = {"error": "NotFoundError", "status": 404}
    answered = (
        "chat", "max_completion_tokens", "temperature 0", "top_p 1", "stop string", "stop list", "logit_bias",
        "json_object", "json_schema", "format text", "empty content", "parts", "developer", "empty model",
    )  # fmt: skip
    assert {name: results.pop(name) for name in answered} == dict.fromkeys(answered, FOUR)
    assert results == {
        "models": [["demo-model", 0, "demo-model"]],
        "stream": [*PIECES, " a"],
        "usage": 35,
        "both limits": [" Deep learning", "length"],
        "bad temperature": invalid,
        "bad temperature stream": {"error": "APIError", "status": None},
        "n": [0, 1],
        "logprobs": [
            [" Deep", -0.25, [" Deep", " Bell"]],
            [" learning", -0.5, [" learning", " pur"]],
            [" is", -0.75, [" is", "ur"]],
            [" a", -1.0, [" a", "in"]],
        ],
        "tools": CALLED,
        "tools strict": CALLED,
        "tools stream": STREAMED_CALL,
        "tools without parameters": "stop",
        "tool result": [" It is 18C.", "stop"],
        "completion": [THREE, 4],
        "completion stream": PIECES,
        "completion echo": THREE,
        "completion token ids": THREE,
        "completion n": [0, 1],
        "parse": "Ada",
        "responses": missing,
        "embeddings": missing,
    }


def test_langchain(urls: dict[str, str]) -> None:
    assert run("calls_langchain.py", urls["plain"], urls["tool"]) == {
        "endpoint": THREE,
        "endpoint stream": PIECES,
        "chat huggingface": THREE,
        "chat openai": THREE,
        "chat openai stream": [*PIECES, ""],
        "bind_tools": [["get_weather", {"city": "Paris"}, "0"]],
    }
