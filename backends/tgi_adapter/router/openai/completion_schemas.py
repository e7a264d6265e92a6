"""The body of `/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Tag

from pageport.backends.tgi_adapter.router.call import read_model
from pageport.backends.tgi_adapter.router.errors import BodyError
from pageport.backends.tgi_adapter.router.openai.kinds import one_of, prompt_kind
from pageport.backends.tgi_adapter.router.openai.supersets import stop_as_list, without_nulls
from pageport.backends.tgi_adapter.router.schemas import Body, UInt32, UInt64

Prompt = str | list[UInt32]
Prompts = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Tag("texts")]
    | Annotated[list[UInt32], Tag("tokens")]
    | Annotated[list[list[UInt32]], Tag("lists")],
    one_of(prompt_kind, "a text, tokens, or a list of either, and not empty"),
]


class CompletionRequest(Body):
    """The body of `/v1/completions`.

    Attributes:
        prompt: one or several; each as text or, beyond TGI, as tokens.
        n: answers to each prompt; beyond TGI.
        suffix: refused by TGI, whatever it is.
    """

    model: str | None = None
    prompt: Prompts
    max_tokens: UInt32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool = False
    seed: UInt64 | None = None
    suffix: str | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: list[str] | None = None
    n: UInt32 | None = None

    @property
    def prompts(self) -> list[Prompt]:
        """Each by itself."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        texts = [each for each in prompt if isinstance(each, str)]
        lists = [each for each in prompt if isinstance(each, list)]
        return [*texts, *lists] or [[each for each in prompt if isinstance(each, int)]]


def read_completion(value: Any, *, strict: bool) -> CompletionRequest:
    """A decoded body.

    Raises:
        BodyError: 422, it is none; with `strict`, also where TGI says so and OpenAI's documentation does not.
    """
    if isinstance(value, dict):
        value = (
            {name: item for name, item in value.items() if name != "n"} if strict else without_nulls(value)
        )
        if not strict:
            stop_as_list(value)
    request = read_model(CompletionRequest, value)
    if strict and not all(isinstance(prompt, str) for prompt in request.prompts):
        raise BodyError(422, "prompt: must be text in strict mode (given: tokens)")
    return request
