"""Chat templates: which file counts, and both ways of rendering."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from pageport.backends.tgi_adapter.router.chat_template import ChatTemplate, Dialect, load_chat_template
from pageport.backends.tgi_adapter.router.errors import ErrorKind, RouterError
from pageport.core import ConfigError

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def tgi(source: str, *, strict: bool = False, messages: Any = HI, tools: Any = None) -> str:
    return ChatTemplate(source, TOKENS, strict=strict).render(messages, tools)


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi</s>"),
        ("{{ pad_token }}|{{ messages[0].nothing }}|", "||"),
        ("{{ messages[0] | tojson }}", '{"content":"Hi","role":"user"}'),
        ("{{ {'b': ['<', 'é'], 'a': none} | tojson }}", '{"a":null,"b":["\\u003c","é"]}'),
        ("{{ {'b': [1], 'a': 2} | tojson(indent=2) }}", '{\n  "a": 2,\n  "b": [\n    1\n  ]\n}'),
        ("{{ true }} {{ none }} {{ 1 }} {{ add_generation_prompt }}", "true none 1 true"),
        ("a\n{% if true %}\nb\n{% endif %}\nc", "a\n\nb\n\nc"),
        ("  {% if true %}x{% endif %}", "  x"),
        ("{%- generation -%}  {{ messages[0].content }}  {%- endgeneration -%}", "Hi"),
        (
            "{% for m in messages + messages %}{% if loop.index == 2 %}{% break %}{% endif %}x{% endfor %}",
            "x",
        ),
        ("{{ messages[::-1][0].content.strip().lower().startswith('h') }}", "true"),
        ("{{ messages[0].get('absent', 'default') }}", "default"),
        ("{{ tools is none }}", "true"),
        ("{{ messages[0]['content'][0]['text'] }}", "Hi"),
    ],
)
def test_as_tgi_renders(source: str, prompt: str) -> None:
    assert tgi(source) == prompt


def test_strict_mappings_have_no_default() -> None:
    assert tgi("{{ messages[0].get('role') }}", strict=True) == "user"
    with pytest.raises(RouterError) as failure:
        tgi("{{ messages[0].get('role', 'x') }}", strict=True)
    assert failure.value.kind is ErrorKind.TEMPLATE


def test_strftime_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pageport.backends.tgi_adapter.router.chat_template.local_now", lambda: datetime(2024, 2, 3)
    )
    assert tgi("{{ strftime_now('%d %b %Y') }}") == "03 Feb 2024"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[5].content.strip() }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ absent.attribute }}",
    ],
)
def test_what_fails_is_an_error_of_the_template(source: str) -> None:
    with pytest.raises(RouterError) as failure:
        tgi(source)
    assert failure.value.kind is ErrorKind.TEMPLATE
    assert failure.value.message.startswith("chat_template: ")


def test_whether_tools_are_used() -> None:
    assert ChatTemplate("{% if tools %}x{% endif %}", {}).uses_tools
    assert not ChatTemplate("{% set tools = 1 %}{{ tools }}{{ messages }}", {}).uses_tools


TRANSFORMERS_TEMPLATE = """\
{{ bos_token }}
{%- if tools %}
    {% for tool in tools %}
{{ tool | tojson }}
    {% endfor %}
{% endif %}
{% for message in messages %}
    {% if message.tool_calls %}
[{{ message.tool_calls[0].function.arguments | tojson(indent=1) }}]
    {% else %}
<{{ message['role'] }}>{% generation %}{{ message['content'] }}{% endgeneration %}

    {% endif %}
{% endfor %}
{% if add_generation_prompt %}<assistant>{% endif %}
"""


def test_as_transformers_renders() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {"city": "Zürich", "a": None}}}
    messages: list[dict[str, Any]] = [*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}]
    template = ChatTemplate(TRANSFORMERS_TEMPLATE, TOKENS, Dialect.TRANSFORMERS)
    (expected,), _ = render_jinja_template(
        [messages],
        tools=tools,
        chat_template=TRANSFORMERS_TEMPLATE,
        add_generation_prompt=True,
        **TOKENS,
    )
    assert template.render(messages, tools) == expected
    assert '"name": "f"' in expected and "Zürich" in expected


# -- which file counts -----------------------------------------------------------------------------------------


def write(folder: Path, **files: Any) -> Path:
    for name, value in files.items():
        suffix = ".jinja" if name == "chat_template" and isinstance(value, str) else ".json"
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / f"{name}{suffix}").write_text(text)
    return folder


def prompt_of(folder: Path, *, strict: bool = False) -> str | None:
    template = load_chat_template(folder, strict=strict)
    return None if template is None else template.render(HI, None)


def test_another_configuration_stands_in_for_the_tokenizers(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config={"chat_template": "tokenizer", "bos_token": "<a>"})
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"chat_template": "other {{ bos_token }}", "bos_token": "<b>"}))
    template = load_chat_template(tmp_path, strict=True, tokenizer_config=other)
    assert template is not None
    assert template.render(HI, None) == "other <b>"
    write(tmp_path, chat_template={"chat_template": "own"})
    template = load_chat_template(tmp_path, strict=True, tokenizer_config=other)
    assert template is not None
    assert template.render(HI, None) == "own"


def test_the_file_of_its_own_beats_the_tokenizers_configuration(tmp_path: Path) -> None:
    both = write(
        tmp_path,
        chat_template={"chat_template": "own"},
        tokenizer_config={"chat_template": "tokenizer"},
        processor_config={"chat_template": "processor"},
    )
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert prompt_of(both) == "own"
    (tmp_path / "chat_template.json").unlink()
    assert prompt_of(both) == "tokenizer"
    (tmp_path / "tokenizer_config.json").unlink()
    assert prompt_of(both) == "processor"
    (tmp_path / "processor_config.json").unlink()
    assert prompt_of(both) == "jinja"
    assert prompt_of(both, strict=True) is None


def test_the_default_of_named_templates(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "x"}, {"name": "default", "template": "{{ eos_token }}y"}]
    tokens = {"eos_token": {"content": "</s>", "lstrip": False}}
    assert prompt_of(write(tmp_path, tokenizer_config={"chat_template": named, **tokens})) == "</s>y"


@pytest.mark.parametrize("text", ["{", "[1]", '{"chat_template": 5}', '{"chat_template": [5]}'])
def test_a_configuration_that_cannot_be_used_holds_no_template(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(text)
    assert prompt_of(tmp_path) is None


def test_all_special_tokens_in_a_template_for_transformers(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<pad>", "bos_token": null}')
    (tmp_path / "chat_template.jinja").write_text("{{ pad_token }}{{ bos_token }}|")
    assert prompt_of(tmp_path) == "<pad>|"


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"chat_template: .*chat_template\.jinja is not text in UTF-8"):
        load_chat_template(tmp_path, strict=False)


def test_a_template_that_cannot_be_parsed(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("a\n{% if %}")
    with pytest.raises(ConfigError, match="chat_template: line 2: "):
        load_chat_template(tmp_path, strict=False)
