"""Chat templates: which one a model folder holds, and what a conversation becomes with it.

Two ways of rendering. What TGI reads (`chat_template.json`, `tokenizer_config.json`, `processor_config.json`) is
rendered as TGI's template engine does: white space stays, `tojson` is compact with sorted keys, constants are lower
case. `chat_template.jinja`, which TGI does not read, is rendered as transformers does.
"""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pageport.backends.tgi_adapter.router.errors import ErrorKind, RouterError
from pageport.core import ConfigError

_log = logging.getLogger(__name__)

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# TGI's template engine replaces these inside JSON, so that it can stand in HTML.
_HTML_SAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"})
# The content of messages is always one text here, also where a template expects parts.
_FIRST_PART, _CONTENT = "messages[0]['content'][0]['text']", "messages[0]['content']"


class Dialect(enum.Enum):
    """Whose rendering a template was written for, as far as the server knows."""

    TGI = enum.auto()
    TRANSFORMERS = enum.auto()


class ChatTemplate:
    """One template.

    Args:
        special_tokens: by the names that templates use; a token that the model does not have is left out.
        strict: mappings in a conversation have no `get` with a default, as in TGI.

    Raises:
        ConfigError: the source is not a template.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        dialect: Dialect = Dialect.TGI,
        *,
        strict: bool = False,
    ) -> None:
        self.dialect = dialect
        self._strict = strict
        self._special_tokens = dict(special_tokens)
        environment = _environment(dialect)
        if dialect is Dialect.TGI:
            source = source.replace(_FIRST_PART, _CONTENT)
        try:
            self.uses_tools = "tools" in find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(f"chat_template: line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        """The prompt of a conversation, up to where the assistant's answer begins.

        Raises:
            RouterError: the template refuses this conversation, or fails on it.
        """
        wrap: Callable[[Any], Any] = _without_defaults if self._strict else _unchanged
        try:
            return self._template.render(
                messages=wrap(list(messages)),
                tools=wrap(None if tools is None else list(tools)),
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise RouterError(ErrorKind.TEMPLATE, f"chat_template: {error}") from error


def load_chat_template(
    folder: Path, *, strict: bool, tokenizer_config: Path | None = None
) -> ChatTemplate | None:
    """The folder's template; None: it has none. With `strict`, only the files that TGI reads.

    Args:
        tokenizer_config: instead of the folder's `tokenizer_config.json`.

    Raises:
        ConfigError: the template cannot be read, or not parsed.
    """
    configuration = _read_json(tokenizer_config or folder / "tokenizer_config.json")
    special_tokens = _special_token_texts(configuration)
    candidates = (
        _read_json(folder / "chat_template.json"),
        configuration,
        _read_json(folder / "processor_config.json"),
    )
    entry = next((found for each in candidates if (found := each.get("chat_template")) is not None), None)
    if (source := _default_template(entry)) is not None:
        shown = {name: special_tokens[name] for name in _SPECIAL_TOKENS[:2] if name in special_tokens}
        return ChatTemplate(source, shown, strict=strict)
    path = folder / "chat_template.jinja"
    if strict or not path.is_file():
        return None
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"chat_template: {path} is not text in UTF-8: {error}") from error
    return ChatTemplate(source, special_tokens, Dialect.TRANSFORMERS)


def local_now() -> datetime:
    """What `strftime_now` shows."""
    return datetime.now()


def _read_json(path: Path) -> dict[str, Any]:
    """An object; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        _log.warning("%s is not JSON, and is left out: %s", path, error)
        return {}
    return value if isinstance(value, dict) else {}


def _default_template(entry: Any) -> str | None:
    """Of a list of named templates the one called `default`."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list):
        named = {each.get("name"): each.get("template") for each in entry if isinstance(each, dict)}
        default = named.get("default")
        return default if isinstance(default, str) else None
    return None


def _special_token_texts(configuration: Mapping[str, Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in _SPECIAL_TOKENS:
        token = configuration.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            texts[name] = text
    return texts


# -- the template engine ---------------------------------------------------------------------------------------


def _environment(dialect: Dialect) -> ImmutableSandboxedEnvironment:
    transformers = dialect is Dialect.TRANSFORMERS
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=transformers,
        lstrip_blocks=transformers,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
        finalize=_unchanged if transformers else _lower_case_constant,
    )
    environment.filters["tojson"] = _spaced_json if transformers else _compact_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; here only what is inside counts."""

    tags = {"generation"}  # noqa: RUF012  Jinja's way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> str:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return local_now().strftime(format)


def _spaced_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _compact_json(value: Any, indent: int | None = None) -> str:
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=True)
    return text.translate(_HTML_SAFE)


def _lower_case_constant(value: Any) -> Any:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else value


def _unchanged(value: Any) -> Any:
    return value


class _WithoutDefault(dict[str, Any]):
    def get(self, key: str, /) -> Any:  # type: ignore[override]  # that is its point
        return super().get(key)


def _without_defaults(value: Any) -> Any:
    if isinstance(value, dict):
        return _WithoutDefault({key: _without_defaults(item) for key, item in value.items()})
    return [_without_defaults(item) for item in value] if isinstance(value, list) else value
