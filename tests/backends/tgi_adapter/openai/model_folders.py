"""Model folders of the kinds that the recorded ones were of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Of the recorded templates only what they were about and what they gave is known; these give the same.
TEMPLATES = {
    "template that raises": "{{ raise_exception('roles must alternate') }}",
    "template with strftime_now": (
        "{{ strftime_now('%Y') }}{% for message in messages %}{{ message.content }}{% endfor %}"
    ),
    "template with tojson and namespace": (
        "{% set count = namespace(value=0) %}"
        "{% for message in messages %}{{ message | tojson }}{% set count.value = count.value + 1 %}{% endfor %}"
        "{{ count.value }}{% if tools %}{{ tools | tojson }}{% endif %}"
    ),
    "template syntax error": "{% for m in messages %}",
    "template uses python string methods": (
        "{% for message in messages %}{{ message.get('content', '').strip().title() }}{% endfor %}"
    ),
    "template with generation block": (
        "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}"
    ),
}


def make_model_folder(kind: str, model: Path, target: Path) -> Path:
    """What a router reads of a folder of this kind; everything else is as in `model`."""
    configuration: dict[str, Any] = json.loads((model / "tokenizer_config.json").read_text())
    files = {"tokenizer.json": (model / "tokenizer.json").read_text()}
    template = configuration.pop("chat_template")
    named = [{"name": name, "template": template} for name in ("tool_use", "default")]
    match kind:
        case "no chat template anywhere" | "no tokenizer_config.json":
            pass
        case "no config.json":
            configuration["chat_template"] = template
        case "chat_template.jinja only":
            files["chat_template.jinja"] = template
        case "chat_template.json only":
            files["chat_template.json"] = json.dumps({"chat_template": template})
        case "list of named templates":
            configuration["chat_template"] = named
        case "list without default":
            configuration["chat_template"] = named[:1]
        case _:
            configuration["chat_template"] = TEMPLATES[kind]
    if kind != "no tokenizer_config.json":
        files["tokenizer_config.json"] = json.dumps(configuration)
    target.mkdir()
    for name, text in files.items():
        (target / name).write_text(text)
    return target
