"""From a chat request to the requests for the engine: the template's prompt, the grammar, the parameters."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from numpy import errstate, float32

from pageport.backends.tgi_adapter.router.call import Call
from pageport.backends.tgi_adapter.router.chat_template import ChatTemplate, Dialect
from pageport.backends.tgi_adapter.router.errors import ErrorKind, RouterError, invalid
from pageport.backends.tgi_adapter.router.inference import GenerateInput
from pageport.backends.tgi_adapter.router.openai.chat_schemas import ChatRequest, Tool
from pageport.backends.tgi_adapter.router.openai.choices import check_num_choices, seed_of_choice
from pageport.backends.tgi_adapter.router.openai.messages import Message, compact_json, is_number
from pageport.backends.tgi_adapter.router.openai.tools import tool_grammar, tools_to_offer
from pageport.backends.tgi_adapter.router.schemas import GenerateParameters, GrammarBody
from pageport.backends.tgi_adapter.router.settings import RouterSettings

# What comes to the last message where a client names no `tool_prompt`: part of TGI's interface, since it is part of
# the prompt that a model answers.
_TOOL_PROMPT = (
    "\nGiven the functions available, please respond with a JSON for a function call with its proper arguments that "
    "best answers the given prompt. Respond in the format {name: function name, parameters: dictionary of argument "
    "name and its value}.Do not use variables.\n"
)
_LARGEST_BIAS = 100.0
# What chat clients call the parameters that they set.
_FIELD_NAMES = {
    "inputs": "messages",
    "max_new_tokens": "max_tokens",
    "repetition_penalty": "presence_penalty + 2",
    "top_n_tokens": "top_logprobs",
}


@dataclass(frozen=True, slots=True)
class ChatInput:
    """What goes to the engine.

    Attributes:
        choices: one request for each choice.
        may_call: its answers are function calls.
    """

    choices: tuple[GenerateInput, ...]
    may_call: bool

    @property
    def num_characters(self) -> int:
        return len(self.choices[0].inputs)


class ChatInputs:
    """Makes them."""

    def __init__(self, settings: RouterSettings, template: ChatTemplate | None, vocab_size: int) -> None:
        self._settings = settings
        self._template = template
        self._vocab_size = vocab_size

    def make(self, call: Call, request: ChatRequest) -> ChatInput:
        """As the client asked.

        Raises:
            RouterError: template, tool, or a value that could not be seen to be wrong before (validation).
        """
        if request.response_format is not None and request.tools is not None:
            raise RouterError(
                ErrorKind.TOOL, "response_format, tools: must not both be given, an answer can have one form"
            )
        if request.response_format is not None or request.tools is None:
            return self._input(call, request, [], request.response_format)
        tools = tools_to_offer(request.tools, request.tool_choice)
        return self._input(call, request, tools, tool_grammar(tools) if tools else None)

    def without_tools(self, call: Call, request: ChatRequest) -> ChatInput:
        """When the model chose to call nothing."""
        return self._input(call, request, [], None)

    def _input(
        self, call: Call, request: ChatRequest, tools: list[Tool], grammar: GrammarBody | None
    ) -> ChatInput:
        prompt = self._prompt(request, tools)
        count = 1 if self._settings.strict else request.n or 1
        check_num_choices(count, self._settings)
        bias = self._logit_bias(request)
        names = {**_FIELD_NAMES, "grammar": "tools" if tools else "response_format"}
        choices = tuple(
            GenerateInput(
                inputs=prompt,
                parameters=_parameters(request, grammar, seed_of_choice(request.seed, index)),
                start=call.start,
                route="chat_completions",
                stream=request.stream,
                add_special_tokens=False,
                logit_bias=bias,
                service_class=call.service_class,
                trace_context=call.trace_context,
                field_names=names,
            )
            for index in range(count)
        )
        return ChatInput(choices, may_call=bool(tools))

    def _prompt(self, request: ChatRequest, tools: list[Tool]) -> str:
        template = self._template
        if template is None:
            raise RouterError(ErrorKind.TEMPLATE, "chat_template: this model has none, so it cannot chat")
        appended = ""
        if tools:
            shown = "" if template.uses_tools else f"{_tool_list(tools)}\n"
            appended = f"\n---\n{shown}{request.tool_prompt or _TOOL_PROMPT}"
        for_tgi = template.dialect is Dialect.TGI
        last = len(request.messages) - 1
        messages = [
            (message.for_tgi if for_tgi else message.for_transformers)(appended if index == last else "")
            for index, message in enumerate(request.messages)
        ]
        offered = [tool.dump() if for_tgi else tool.for_transformers() for tool in tools]
        prompt = template.render(messages, offered or None)
        return _continued(prompt, request.messages[-1], appended) if request.messages else prompt

    def _logit_bias(self, request: ChatRequest) -> dict[int, float] | None:
        if not isinstance(request.logit_bias, dict):
            return None
        bias = {int(token): value for token, value in request.logit_bias.items()}
        for token, value in bias.items():
            if token >= self._vocab_size:
                raise invalid("logit_bias", f"tokens must be below {self._vocab_size} (given: {token})")
            if not -_LARGEST_BIAS <= value <= _LARGEST_BIAS:
                raise invalid(
                    "logit_bias", f"must be from -{_LARGEST_BIAS:g} to {_LARGEST_BIAS:g} (given: {value})"
                )
        return bias


def next_call_id(messages: list[Message]) -> str:
    """The id of the next function call in a stream: one more than the last, where ids are numbers."""
    ids = [call.id for message in messages for call in message.tool_calls]
    if not all(map(is_number, ids)):
        return str(uuid4())
    return str(max((int(each) + 1 for each in ids), default=0))


def _tool_list(tools: list[Tool]) -> str:
    return compact_json([tool.dump() for tool in tools])


def _continued(prompt: str, last: Message, appended: str) -> str:
    """A last message of the assistant is not closed: the answer goes on from there."""
    if last.role != "assistant":
        return prompt
    text = last.for_tgi(appended)["content"]
    found = prompt.rfind(text)
    return prompt if found < 0 else prompt[: found + len(text)].rstrip()


def _parameters(request: ChatRequest, grammar: GrammarBody | None, seed: int | None) -> GenerateParameters:
    """TGI's reading of OpenAI's parameters."""
    return GenerateParameters(
        temperature=request.temperature or None,
        repetition_penalty=_repetition_penalty(request.presence_penalty),
        frequency_penalty=request.frequency_penalty,
        top_p=request.top_p,
        do_sample=request.temperature != 0.0,
        max_new_tokens=request.max_tokens,
        stop=request.stop or [],
        details=True,
        seed=seed,
        top_n_tokens=request.top_logprobs,
        grammar=grammar,
        adapter_id=None if request.model == "tgi" else request.model,
    )


def _repetition_penalty(presence_penalty: float | None) -> float | None:
    """TGI's: the range of -2 to 2 is moved to above 0."""
    if presence_penalty is None:
        return None
    with errstate(over="ignore"):
        return float(float32(presence_penalty) + float32(2.0))
