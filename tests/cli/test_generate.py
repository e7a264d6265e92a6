"""`pageport generate` as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PAGEPORT = str(Path(sys.executable).with_name("pageport"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PAGEPORT, *arguments], capture_output=True, text=True, timeout=120)


@pytest.mark.usefixtures("demo_model")
def test_json_answer_of_the_demo_model() -> None:
    done = run("generate", "--json", "--dtype", "float32", "--max-tokens", "4", "The capital of France is")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["text"].startswith(" Paris")
    assert answer["finish_reason"] == "length"
    assert len(answer["token_ids"]) == 4
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


@pytest.mark.usefixtures("demo_model")
def test_chat_streams_the_answer_and_ends() -> None:
    done = run("generate", "--chat", "--dtype", "float32", "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France is Paris.\n"


def test_a_gguf_file_is_a_model(demo_model: Path) -> None:
    from pageport.core import demo_gguf_path

    arguments = ("generate", "--json", "--dtype", "float32", "--max-tokens", "8", "Water boils at")
    from_gguf = run(*arguments, "--model", str(demo_gguf_path()))
    assert from_gguf.returncode == 0, from_gguf.stderr
    assert json.loads(from_gguf.stdout) == json.loads(run(*arguments, "--model", str(demo_model)).stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "/nowhere"), "there is no model at /nowhere"),
        (("--max-tokens", "-1", "--model", "/"), "max_tokens: Input should be greater than or equal to 1"),
        (("--block-size", "0", "--model", "/"), "block_size: Input should be greater than or equal to 1"),
        (("--model", "/"), "/ has no tokenizer.json"),
    ],
)
def test_mistakes_end_with_one_plain_line(arguments: tuple[str, ...], message: str) -> None:
    done = run("generate", *arguments, "hello")
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr
