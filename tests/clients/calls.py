"""Collects what client calls came to, as JSON on standard output. Runs in the clients' own environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class Calls:
    """Results by name; an exception is a result too."""

    def __init__(self) -> None:
        self._results: dict[str, Any] = {}

    def add(self, name: str, call: Callable[[], Any]) -> None:
        try:
            self._results[name] = call()
        except Exception as error:
            self._results[name] = {
                "error": type(error).__name__,
                "status": getattr(error, "status_code", None),
            }

    def print(self) -> None:
        print(json.dumps(self._results))


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
MESSAGES = [{"role": "user", "content": "Hi"}]
