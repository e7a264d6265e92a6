"""What a template gets to see of messages and tools, and the prompts that come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_folders import make_model_folder
from openai_router import Router
from router_harness import recorded_settings, running_router
from scripted_engine import Script
from tokenizers import Tokenizer

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city":"Oslo"}'}}
ASKED = {"role": "user", "content": "Weather?"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
PROMPT = "<|im_start|>system\nBe brief.<|im_end|>\n"
SYSTEM = {"role": "system", "content": "Be brief."}


async def prompt_of(router: Router, *messages: dict[str, Any], **fields: Any) -> str:
    body = {"messages": [SYSTEM, *messages], **fields}
    response = await router.client.post("/chat_tokenize", json=body)
    assert response.status_code == 200, response.text
    text: str = response.json()["templated_text"]
    return text.removeprefix(PROMPT)


@pytest.mark.parametrize(
    ("last", "prompt"),
    [
        ({"role": "assistant", "content": "It is "}, "<|im_start|>assistant\nIt is"),
        ({"role": "assistant", "content": ""}, "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant"),
        (
            {"role": "user", "content": "It is "},
            "<|im_start|>user\nIt is <|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
async def test_a_last_message_of_the_assistant_goes_on(router: Router, last: Any, prompt: str) -> None:
    assert await prompt_of(router, last) == prompt


async def test_parts_and_other_fields(router: Router) -> None:
    parts = [
        {"type": "text", "text": "Look: "},
        {"type": "image_url", "image_url": {"url": "http://host/a.png", "detail": "low"}},
    ]
    message = {"role": "user", "content": parts, "name": "Ann", "tool_calls": "ignored beside content"}
    prompt = "<|im_start|>user\nLook: ![](http://host/a.png)<|im_end|>\n<|im_start|>assistant\n"
    assert await prompt_of(router, message) == prompt


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "No."},
        {"content": None, "refusal": "No.", "tool_calls": None},
        {"content": [{"type": "refusal", "refusal": "No."}]},
    ],
)
async def test_what_an_assistant_refused_with_is_what_it_said(router: Router, fields: Any) -> None:
    said = {"role": "assistant", **fields}
    prompt = (
        "<|im_start|>assistant\nNo.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert await prompt_of(router, said, ASKED) == prompt


async def test_tools_come_with_the_last_message_that_has_content(router: Router) -> None:
    prompt = await prompt_of(router, ASKED, tools=[TOOL], tool_prompt="Choose.", tool_choice="required")
    listed = '[{"type":"function","function":{"description":null,"name":"f","arguments":'
    assert prompt.startswith(f"<|im_start|>user\nWeather?\n---\n{listed}")
    assert prompt.endswith("}]\nChoose.<|im_end|>\n<|im_start|>assistant\n")
    calls_only = {"role": "tool", "content": None, "tool_calls": [CALL]}
    prompt = await prompt_of(router, ASKED, calls_only, tools=[TOOL], tool_prompt="Choose.")
    assert "Choose." not in prompt


TEMPLATE = """\
{% for tool in tools or [] %}
{{ tool.function.name }}: {{ tool.function.parameters }}
{% endfor %}
{% for message in messages %}
{{ message.role }}({{ message.name }}): {{ message.content }}
    {% for call in message.tool_calls or [] %}
-> {{ call.function.name }} {{ call.function.arguments.city }}
    {% endfor %}
{% endfor %}
"""


async def test_a_template_for_transformers_sees_what_it_expects(
    tokenizer: Tokenizer, demo_model: Path, tmp_path: Path
) -> None:
    folder = make_model_folder("no chat template anywhere", demo_model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    messages = [
        {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "18C"},
    ]
    fields = {"tools": [TOOL], "tool_choice": "required", "tool_prompt": "Choose."}
    async with running_router(recorded_settings(), tokenizer, folder) as (client, engine):
        engine.play(Script('{"function": {"_name": "f"}}'))
        response = await client.post("/v1/chat/completions", json={"messages": messages, **fields})
        assert response.status_code == 200, response.text
    assert engine.submitted[0].prompt == (
        "f: {'type': 'object', 'properties': {}}\n"
        "user(Ann): Weather?\n"
        "assistant(): None\n"
        "-> f Oslo\n"
        "tool(): 18C\n---\nChoose.\n"
    )
