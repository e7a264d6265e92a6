"""Chat messages to a prompt, by the template that comes with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pageport.core.errors import InvalidRequestError, ModelError


def render_chat(tokenizer: Path, messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt that asks the model for the next message.

    Args:
        tokenizer: folder with `tokenizer_config.json`.
        messages: each with `role` and `content`.

    Raises:
        ModelError: the folder has no chat template.
        InvalidRequestError: the template refuses these messages.
    """
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    if not loaded.chat_template:
        raise ModelError(f"the tokenizer in {tokenizer} has no chat template")
    try:
        prompt = loaded.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise InvalidRequestError("messages", f"the chat template refuses them: {error}") from error
    assert isinstance(prompt, str)
    return prompt
