"""Calling functions: the grammar, reading whole answers and streams, the second generation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from openai_router import MESSAGES, Router
from scripted_engine import Script

from pageport.backends.tgi_adapter.router.grammar import read_grammar
from pageport.backends.tgi_adapter.router.openai.chat_schemas import Tool
from pageport.backends.tgi_adapter.router.openai.tool_stream import ToolStreamState, tool_stream_reader
from pageport.backends.tgi_adapter.router.openai.tools import FunctionCall, tool_grammar, try_parse_call
from pageport.core.grammar import translate

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str, parameters: Any = None) -> dict[str, Any]:
    shown = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": shown}


WEATHER, PING = function("get_weather", CITY), function("ping", {"type": "object", "properties": {}})


# -- the grammar -----------------------------------------------------------------------------------------------


def allows(tools: list[dict[str, Any]], text: str) -> bool:
    """Whether a model may write exactly this."""
    grammar = read_grammar(tool_grammar([Tool.model_validate(tool) for tool in tools]), strict=False)
    assert grammar is not None
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, translate(grammar))
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('{"function": {"_name": "get_weather", "city": "Oslo"}}', True),
        ('{"function": {"_name": "ping"}}', True),
        ('{"function": {"_name": "get_weather"}}', False),
        ('{"function": {"_name": "ping", "city": "Oslo"}}', False),
        ('{"function": {"city": "Oslo", "_name": "get_weather"}}', False),
        ('{"function": {"_name": "other"}}', False),
        ("{}", False),
    ],
)
def test_a_model_may_only_write_calls(text: str, allowed: bool) -> None:
    assert allows([WEATHER, PING], text) is allowed


def test_schemas_that_refer_to_parts_of_themselves() -> None:
    tree = {
        "$defs": {"Leaf": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
        "type": "object",
        "properties": {"leaf": {"$ref": "#/$defs/Leaf"}, "inner": {"$ref": "#"}},
        "required": ["leaf"],
    }
    other = {
        "$defs": {"Leaf": {"type": "string"}},
        "properties": {"leaf": {"$ref": "#/$defs/Leaf"}},
        "required": ["leaf"],
    }
    tools = [function("tree", tree), function("text", other)]
    assert allows(tools, '{"function": {"_name": "tree", "leaf": {"n": 1}, "inner": {"leaf": {"n": 2}}}}')
    assert allows(tools, '{"function": {"_name": "text", "leaf": "x"}}')
    assert not allows(tools, '{"function": {"_name": "text", "leaf": {"n": 1}}}')
    assert not allows(tools, '{"function": {"_name": "tree", "leaf": {"n": "x"}}}')


@pytest.mark.parametrize(
    "parameters", [[], "x", 5, {"properties": []}, {"required": "city"}, {"type": "object"}]
)
def test_parameters_that_name_no_properties_take_none(parameters: Any) -> None:
    assert allows([function("f", parameters)], '{"function": {"_name": "f"}}')


def test_a_parameter_cannot_take_the_place_of_the_functions_name() -> None:
    tool = function("f", {"properties": {"_name": {"type": "string"}, "a": {"type": "integer"}}})
    assert allows([tool], '{"function": {"_name": "f", "a": 1}}')
    assert not allows([tool], '{"function": {"_name": "g", "a": 1}}')


# -- reading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('{"function":{"_name":"f","b":1,"a":"é"}} \n', FunctionCall("f", '{"b":1,"a":"é"}')),
        ('{"function": {"a": [1.5], "_name": "f"}, "more": 1}', FunctionCall("f", '{"a":[1.5]}')),
        ('{"function": {"_name": 5}}', None),
        ('{"function": "f"}', None),
        ("[]", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_reading_a_whole_call(text: str, call: FunctionCall | None) -> None:
    assert try_parse_call(text) == call


def deltas(*tokens: str, strict: bool = False) -> list[tuple[str | None, str] | None]:
    """What a client is told with each token."""
    reader = tool_stream_reader(strict=strict)
    told = map(reader.push, tokens)
    return [None if delta is None else (delta.name, delta.arguments) for delta in told]


def streamed(*tokens: str) -> tuple[list[str | None], str, ToolStreamState]:
    """The names and the joined arguments that a client gets for these tokens."""
    reader = tool_stream_reader(strict=False)
    deltas = [delta for token in tokens if (delta := reader.push(token)) is not None]
    return [delta.name for delta in deltas], "".join(delta.arguments for delta in deltas), reader.state


@pytest.mark.parametrize(
    ("tokens", "arguments"),
    [
        (('{"function": {"_name": "f"', ",", ' "a"', ": 1", "}", "}"), ' "a": 1'),
        (('{"function": {"_name": "f', '",', ' "a": 1', "}}"), ' "a": 1'),
        (('{"function": {"_name": "f"', ', "a": 1}', "}"), ' "a": 1'),
        (('{"function": {"_name": "f", "a": {"b": "}"', "}", "}", "}"), ' "a": {"b": "}"}'),
        (('{"function": {"_name": "f", ', '"a": "x}}"', "}} \n"), ' "a": "x}}"'),
    ],
)
def test_streamed_arguments_are_json(tokens: tuple[str, ...], arguments: str) -> None:
    names, joined, state = streamed(*tokens)
    assert names[0] == "f" and not any(names[1:])
    assert (joined, state) == ("{" + arguments + "}", ToolStreamState.COMPLETE)
    json.loads(joined)


@pytest.mark.parametrize(
    "tokens",
    [
        ('{"function": {"_name": "f"}}',),
        ('{"function": {"_name": "f"', "}}"),
        ('{"function": {"_name": "f"', "}", "}"),
    ],
)
def test_streamed_call_without_arguments(tokens: tuple[str, ...]) -> None:
    names, joined, state = streamed(*tokens, "<|im_end|>")
    assert (names[0], joined, state) == ("f", "{}", ToolStreamState.COMPLETE)


def test_streamed_text_that_is_no_call() -> None:
    assert streamed("not", " json")[:2] == ([], "")
    assert streamed('{"function": {"_name": "\\q"', "}}")[:2] == ([], "")
    assert streamed('{"function": {"_name": "no_tool"', "}}") == ([], "", ToolStreamState.NO_TOOL)


# Each token of a call with what TGI's reader tells of it, worked out from its rule: once the text, without blanks,
# commas and braces at its end, is a call when closed, a brace is told; then all that comes, until the text is a call.
TOLD_BY_TGI: list[list[tuple[str, tuple[str | None, str] | None]]] = [
    [
        ('{"function": {"_name": "f', None),
        ('",', ("f", "{")),
        (' "a": 1', (None, ' "a": 1')),
        ("}", (None, "}")),
        ("} ", (None, "")),
        ("<|im_end|>", None),
    ],
    [
        ('{"function": {"_name": "f"', ("f", "{")),
        ("}", (None, "}")),
        ("}", (None, "")),
        ("<|im_end|>", None),
    ],
]
BROKEN_BY_TGI: list[list[tuple[str, tuple[str | None, str] | None]]] = [
    [('{"function": {"_name": "f"}}', ("f", "{")), ("<|im_end|>", (None, "<|im_end|>"))],
    [('{"function": {"_name": "f"', ("f", "{")), (",", (None, ",")), (' "a": 1', (None, ' "a": 1'))],
    [('{"function":{"_name":"f","', None), ('a":"x', None), ('"}}', ("f", "{"))],
]


@pytest.mark.parametrize("told", [*TOLD_BY_TGI, *BROKEN_BY_TGI])
def test_strict_streams_are_told_as_by_tgi(told: list[tuple[str, tuple[str | None, str] | None]]) -> None:
    assert deltas(*(token for token, _ in told), strict=True) == [delta for _, delta in told]


def test_a_call_that_ends_with_its_name_has_an_end_in_a_stream() -> None:
    assert deltas('{"function": {"_name": "f"}}', "<|im_end|>") == [("f", "{}"), (None, "")]


@pytest.mark.parametrize("told", TOLD_BY_TGI)
def test_whole_streams_are_told_as_by_tgi(told: list[tuple[str, tuple[str | None, str] | None]]) -> None:
    assert deltas(*(token for token, _ in told)) == [delta for _, delta in told]


def test_strict_text_that_is_no_call() -> None:
    reader = tool_stream_reader(strict=True)
    assert [reader.push(token) for token in ("not", " json")] == [None, None]
    assert reader.push("}}") is None and reader.state is ToolStreamState.BEFORE_NAME
    reader = tool_stream_reader(strict=True)
    assert reader.push('{"function": {"_name": "no_tool"') is None
    assert reader.state is ToolStreamState.NO_TOOL


# -- over HTTP -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "offered"),
    [
        (None, ["get_weather", "ping", "no_tool"]),
        ("auto", ["get_weather", "ping", "no_tool"]),
        ("required", ["get_weather", "ping"]),
        ("ping", ["ping"]),
        ({"type": "function", "function": {"name": "get_weather"}}, ["get_weather"]),
    ],
)
async def test_tool_choice(router: Router, choice: Any, offered: list[str]) -> None:
    router.engine.play(Script('{"function": {"_name": "ping"}}'))
    response = await router.chat(tools=[WEATHER, PING], tool_choice=choice)
    assert response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "ping"
    grammar = router.engine.submitted[-1].sampling.grammar
    assert grammar is not None
    calls = json.loads(grammar.source)["properties"]["function"]["anyOf"]
    assert [call["properties"]["_name"]["const"] for call in calls] == offered


async def test_a_stream_without_blanks(router: Router, strict_router: Router) -> None:
    """The name's quote, the comma and a parameter's quote are one token; TGI loses what comes with it."""
    for each, arguments in ((router, '{"city":"Oslo"}'), (strict_router, "{}")):
        each.engine.play(Script('{"function":{"_name":"get_weather","city":"Oslo"}}'))
        events = await each.chat_events(tools=[WEATHER])
        functions = [
            event["choices"][0]["delta"]["tool_calls"][0]["function"] for event in events if event != "[DONE]"
        ]
        assert functions[0]["name"] == "get_weather"
        assert "".join(function["arguments"] for function in functions) == arguments


async def test_no_tool_may_be_called(router: Router) -> None:
    response = await router.chat(tools=[WEATHER], tool_choice="none", max_tokens=2)
    assert response.json()["choices"][0]["message"]["content"] == " Deep learning"
    assert router.engine.submitted[-1].sampling.grammar is None
    assert "get_weather" not in router.engine.submitted[-1].prompt


async def test_a_stream_whose_model_calls_nothing_ends_that_generation(router: Router) -> None:
    router.engine.play_in_turn([Script('{"function": {"_name": "no_tool"}}'), Script(" Fine.")])
    events = await router.chat_events(tools=[WEATHER], stream_options={"include_usage": True})
    texts = [event["choices"][0]["delta"]["content"] for event in events[:-2]]
    assert ("".join(texts), events[-1]) == (" Fine.", "[DONE]")
    first, second = router.engine.submitted
    assert (first.aborted, second.aborted) == (True, False)
    assert events[-2]["usage"]["prompt_tokens"] == len(second.prompt_ids)
    assert events[-2]["usage"]["completion_tokens"] == 3


async def test_the_second_generation_may_fail(router: Router) -> None:
    scripts = [Script('{"function": {"_name": "no_tool"}}'), Script(prefill_error="out of blocks")]
    router.engine.play_in_turn(scripts)
    assert (await router.chat(tools=[WEATHER])).status_code == 424
    router.engine.play_in_turn(scripts)
    events = await router.chat_events(tools=[WEATHER])
    assert events[0]["error"]["http_status_code"] == 422
    assert events[1:] == ["[DONE]"]


@pytest.mark.parametrize(
    ("earlier", "expected"), [([], "0"), (["0"], "1"), (["3", "1"], "4"), (["call_x"], None)]
)
async def test_ids_of_streamed_calls(router: Router, earlier: list[str], expected: str | None) -> None:
    router.engine.play(Script('{"function": {"_name": "ping"}}'))
    calls = [
        {"id": each, "type": "function", "function": {"name": "ping", "arguments": "{}"}} for each in earlier
    ]
    history = [{"role": "assistant", "content": None, "tool_calls": calls}] if calls else []
    events = await router.chat_events(messages=[*MESSAGES, *history], tools=[PING])
    given = events[0]["choices"][0]["delta"]["tool_calls"][0]["id"]
    assert given == expected if expected is not None else len(given) == 36


async def test_logprobs_of_a_streamed_call(router: Router) -> None:
    router.engine.play(Script('{"function": {"_name": "get_weather", "city": "Oslo"}}'))
    events = await router.chat_events(tools=[WEATHER], logprobs=True)
    shown = [
        (
            event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"],
            event["choices"][0]["logprobs"]["content"][0]["token"],
        )
        for event in events[:-1]
    ]
    assert "".join(arguments for arguments, _ in shown) == '{ "city": "Oslo"}'
    assert all(arguments == token for arguments, token in shown)
