"""`/v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.types import ASGIApp

from pageport.backends.tgi_adapter.generation import TokenEvent
from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.context import RouterContext
from pageport.backends.tgi_adapter.router.errors import ErrorKind, RouterError, invalid
from pageport.backends.tgi_adapter.router.headers import stream_headers, summed_headers
from pageport.backends.tgi_adapter.router.inference import Answer, GenerateInput, WholeAnswer, all_of
from pageport.backends.tgi_adapter.router.openai.answers import (
    Identity,
    Usage,
    error_event,
    finish_reason,
)
from pageport.backends.tgi_adapter.router.openai.choices import check_num_choices, seed_of_choice
from pageport.backends.tgi_adapter.router.openai.completion_schemas import (
    CompletionRequest,
    Prompt,
    read_completion,
)
from pageport.backends.tgi_adapter.router.openai.merge import merged
from pageport.backends.tgi_adapter.router.routing import JsonResponse, RouteSpec
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters
from pageport.backends.tgi_adapter.router.sse import DONE, EventStream, frame

# What clients of this route call the parameters that they set.
_FIELD_NAMES = {"inputs": "prompt", "max_new_tokens": "max_tokens"}


def completion_routes(routes: CompletionRoutes) -> list[RouteSpec]:
    return [RouteSpec("POST", "/v1/completions", routes.completions)]


class CompletionRoutes:
    """The handler."""

    def __init__(self, context: RouterContext) -> None:
        self._context = context
        self._compute_type = context.settings.compute_type
        self._identity = Identity.of(context.settings)
        self._vocab_size = context.tokenizer.get_vocab_size()

    async def completions(self, call: Call) -> ASGIApp:
        request = read_completion(call.json(), strict=self._context.settings.strict)
        self._context.metrics.requests.inc()
        try:
            choices = self._choices(call, request)
        except RouterError as error:
            self._context.metrics.failed(error.kind)
            raise
        if request.stream:
            headers = stream_headers(self._compute_type, _num_characters(choices))
            return EventStream(self._chunks(choices), headers)
        answers = await all_of(map(self._context.inference.generate, choices))
        body = self._identity.answer(
            "text_completion",
            [_choice_body(index, answer) for index, answer in enumerate(answers)],
            _usage(answers, request.n or 1),
        )
        return JsonResponse(
            body, headers=summed_headers(self._compute_type, _num_characters(choices), answers)
        )

    def _choices(self, call: Call, request: CompletionRequest) -> list[GenerateInput]:
        """One request for each choice: all of the first prompt, then all of the second.

        Raises:
            RouterError: what TGI refuses before it looks at the parameters, and tokens that there are not.
        """
        settings = self._context.settings
        prompts, limit = request.prompts, settings.max_client_batch_size
        if request.suffix is not None:
            raise RouterError(ErrorKind.SUFFIX, f"suffix: must not be given (given: {request.suffix!r:.100})")
        if len(prompts) > limit:
            raise RouterError(
                ErrorKind.BATCH_SIZE,
                f"prompt: must have at most max_client_batch_size, {limit}, entries (given: {len(prompts)})",
            )
        count = request.n or 1
        check_num_choices(count * len(prompts), settings)
        return [
            self._input(call, request, prompt, seed_of_choice(request.seed, index))
            for prompt in prompts
            for index in range(count)
        ]

    def _input(
        self, call: Call, request: CompletionRequest, prompt: Prompt, seed: int | None
    ) -> GenerateInput:
        text, ids = (prompt, None) if isinstance(prompt, str) else self._spelled(prompt)
        return GenerateInput(
            inputs=text,
            prompt_ids=ids,
            parameters=_parameters(request, seed),
            start=call.start,
            route="completions",
            stream=request.stream,
            service_class=call.service_class,
            trace_context=call.trace_context,
            field_names=_FIELD_NAMES,
        )

    def _spelled(self, ids: list[int]) -> tuple[str, tuple[int, ...]]:
        if ids and max(ids) >= self._vocab_size:
            raise invalid("prompt", f"tokens must be below {self._vocab_size} (given: {max(ids)})")
        return self._context.tokenizer.decode(ids, skip_special_tokens=False), tuple(ids)

    async def _chunks(self, choices: Sequence[GenerateInput]) -> AsyncGenerator[bytes]:
        """Framed events. A failure is an event too, and ends its choice."""
        streams = [self._choice(index, generate) for index, generate in enumerate(choices)]
        async with aclosing(merged(streams)) as chunks:
            async for chunk in chunks:
                yield chunk
        yield DONE

    async def _choice(self, index: int, generate: GenerateInput) -> AsyncGenerator[bytes]:
        try:
            async with self._context.inference.open(generate) as answer:
                async for events in answer.events:
                    yield b"".join(frame(self._event(index, event, answer)) for event in events)
        except RouterError as error:
            yield frame(error_event(error))

    def _event(self, index: int, event: TokenEvent, answer: Answer) -> dict[str, Any]:
        """The last one has another shape than the others, and its own word for the end, as in TGI."""
        end = event.generated
        choice = _choice(index, event.token.text, "" if end is None else end.finish_reason.value)
        if end is None:
            return self._identity.completion_chunk([choice])
        usage = Usage(answer.request.input_length, end.generated_tokens)
        return self._identity.answer("text_completion", [choice], usage)


def _parameters(request: CompletionRequest, seed: int | None) -> GenerateParameters:
    return GenerateParameters(
        temperature=request.temperature or None,
        repetition_penalty=request.repetition_penalty,
        frequency_penalty=request.frequency_penalty,
        top_p=request.top_p,
        do_sample=request.temperature != 0.0,
        max_new_tokens=request.max_tokens,
        stop=request.stop or [],
        details=True,
        decoder_input_details=not request.stream,
        seed=seed,
        adapter_id=None if request.model == "tgi" else request.model,
    )


def _num_characters(choices: Sequence[GenerateInput]) -> int:
    return sum(len(choice.inputs) for choice in choices)


def _usage(answers: Sequence[WholeAnswer], per_prompt: int) -> Usage:
    """Each prompt counts once."""
    return Usage(
        sum(answer.request.input_length for answer in answers[::per_prompt]),
        sum(answer.generated.generated_tokens for answer in answers),
    )


def _choice(index: int, text: str, reason: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _choice_body(index: int, answer: WholeAnswer) -> dict[str, Any]:
    return _choice(index, answer.generated.text, finish_reason(answer.generated.finish_reason))
