"""Fields that may be of several kinds: which of them a value is, so that an error is about that one alone."""

from __future__ import annotations

from typing import Any

from pydantic import Discriminator


def json_kind(value: Any) -> str | None:
    """None: one that no field of several kinds takes."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "list"
    return "object" if isinstance(value, dict) else None


def prompt_kind(value: Any) -> str | None:
    """The first entry says what a list is of."""
    if isinstance(value, list) and value:
        first = value[0]
        return "lists" if isinstance(first, list) else "texts" if isinstance(first, str) else "tokens"
    return "text" if isinstance(value, str) else None


def one_of(kind: Any, described: str) -> Discriminator:
    """`described` follows "must be"."""
    return Discriminator(kind, custom_error_type="kind", custom_error_message=f"must be {described}")
