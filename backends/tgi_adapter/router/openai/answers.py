"""The shapes of OpenAI's answers, as TGI fills them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy import float32

from pageport.backends.tgi_adapter.generation import StopReason, TokenEvent
from pageport.backends.tgi_adapter.router.errors import RouterError
from pageport.backends.tgi_adapter.router.openai.tools import FunctionCall
from pageport.backends.tgi_adapter.router.settings import TGI_VERSION, RouterSettings


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answers.

    Attributes:
        model: as clients are told.
    """

    model: str
    fingerprint: str

    @classmethod
    def of(cls, settings: RouterSettings, asked: str | None = None) -> Identity:
        """`asked`: the model that the request names; `tgi` is any."""
        model = settings.model_id if asked in (None, "tgi") else asked
        assert model is not None
        return cls(model, f"{TGI_VERSION}-{settings.docker_label or 'native'}")

    def answer(self, kind: str, choices: Sequence[Any], usage: Usage | None) -> dict[str, Any]:
        """An answer, or one chunk of a chat's stream."""
        return {
            "object": kind,
            "id": "",
            "created": int(time.time()),
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            "usage": None if usage is None else usage.dump(),
        }

    def completion_chunk(self, choices: Sequence[Any]) -> dict[str, Any]:
        """One chunk of a completion's stream but the last, in TGI's order."""
        return {
            "object": "text_completion",
            "id": "",
            "created": int(time.time()),
            "choices": choices,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of prompts and answers."""

    prompt: int
    completion: int

    @classmethod
    def of_choices(cls, usages: Sequence[Usage]) -> Usage:
        """Of several answers to one prompt, which counts once."""
        return cls(usages[0].prompt, sum(usage.completion for usage in usages))

    def dump(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }


def finish_reason(reason: StopReason) -> str:
    """OpenAI's word for an answer that came to its end; TGI's for the others."""
    return "stop" if reason is StopReason.EOS_TOKEN else reason.value


def text_message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call_message(call: FunctionCall) -> dict[str, Any]:
    function = {"description": None, "name": call.name, "arguments": call.arguments}
    return {"role": "assistant", "tool_calls": [{"id": "0", "type": "function", "function": function}]}


def logprobs(events: Iterable[TokenEvent], text: str | None = None) -> dict[str, Any]:
    """Each token with its alternatives; `text` stands in place of the tokens' own."""
    return {
        "content": [
            {
                "token": event.token.text if text is None else text,
                "logprob": float32(event.token.logprob),
                "top_logprobs": [
                    {"token": token.text, "logprob": float32(token.logprob)} for token in event.top_tokens
                ],
            }
            for event in events
        ]
    }


def error_event(error: RouterError) -> dict[str, Any]:
    """An error within a stream; TGI gives each the same code."""
    return {"error": {"message": error.message, "http_status_code": 422}}
