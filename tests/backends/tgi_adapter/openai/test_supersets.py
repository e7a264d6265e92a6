"""What OpenAI's clients document and TGI refuses: answered, with what reaches the engine; refused in strict mode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai_router import MESSAGES, Router
from scripted_engine import Script
from transcript import read_events

from pageport.core import GrammarKind, SamplingParams

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
LEAVES = {
    "$defs": {"Leaf": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    "type": "object",
    "properties": {"leaves": {"type": "array", "items": {"$ref": "#/$defs/Leaf"}}},
    "required": ["leaves"],
}


def as_openai(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


BROKEN_TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "colour"}}}}}
]
REFUSED: Any = {"role": "assistant", "content": None, "refusal": "No."}

REFUSED_BY_TGI: list[dict[str, Any]] = [
    {"top_p": 1},
    {"stop": " part"},
    {"logit_bias": {"5": 1.5}},
    {"max_tokens": 9, "max_completion_tokens": 2},
    {"stream_options": None},
    {"stream": None},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": as_openai(NAME)},
    {"response_format": as_openai(LEAVES)},
    {"response_format": as_openai(None)},
    {"response_format": as_openai({"type": "object", "additionalProperties": {"type": "integer"}})},
    {"response_format": {"type": "json", "value": LEAVES}},
    {"messages": [*MESSAGES, REFUSED, *MESSAGES]},
    {"messages": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *MESSAGES]},
]


@pytest.mark.parametrize("fields", REFUSED_BY_TGI, ids=str)
async def test_answered_and_refused_in_strict_mode(
    router: Router, strict_router: Router, fields: dict[str, Any]
) -> None:
    answer = await router.chat(**{"max_tokens": 1, **fields})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 1
    assert (await strict_router.chat(**{"max_tokens": 1, **fields})).status_code == 422
    assert not strict_router.engine.submitted


async def sampling_of(router: Router, **fields: Any) -> SamplingParams:
    """What reaches the engine."""
    response = await router.chat(**fields)
    assert response.status_code == 200, response.text
    return router.engine.submitted[-1].sampling


async def test_values_that_reach_the_engine(router: Router) -> None:
    assert (await sampling_of(router, top_p=1)).top_p == 1.0
    assert (await sampling_of(router, stop=" part")).stop == (" part",)
    assert (await sampling_of(router, logit_bias={"5": 1.5, "7": -100})).logit_bias == {5: 1.5, 7: -100.0}
    assert (await sampling_of(router, logit_bias=[1.0])).logit_bias is None
    assert (await sampling_of(router, presence_penalty=1e39)).repetition_penalty == 1e4
    assert (await sampling_of(router, max_completion_tokens=3)).max_tokens == 3
    assert (await sampling_of(router, max_tokens=9, max_completion_tokens=2)).max_tokens == 2
    assert (await sampling_of(router, max_tokens=9, max_completion_tokens=None)).max_tokens == 9


@pytest.mark.parametrize(
    ("response_format", "schema"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object", "properties": {}, "additionalProperties": True}),
        (as_openai(None), {"type": "object", "properties": {}, "additionalProperties": True}),
        (as_openai(NAME), NAME),
        (as_openai(LEAVES), LEAVES),
        ({"type": "json_schema", "value": {"name": "x", "schema": NAME}}, NAME),
        ({"type": "json_object", "value": json.dumps(NAME)}, NAME),
    ],
)
async def test_forms_of_response_format(router: Router, response_format: Any, schema: Any) -> None:
    grammar = (await sampling_of(router, response_format=response_format)).grammar
    if schema is None:
        assert grammar is None
    else:
        assert grammar is not None
        assert (grammar.kind, json.loads(grammar.source)) == (GrammarKind.JSON_SCHEMA, schema)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"logit_bias": {"x": 1}}, "logit_bias.object.x"),
        ({"logit_bias": 5}, "logit_bias: must be an object of token ids and numbers (given: 5)"),
        ({"logit_bias": {"5": 101}}, "logit_bias: must be from -100 to 100 (given: 101"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias: tokens must be below 49152 (given: 99999999)"),
        ({"n": 129}, "n: must be at most max_concurrent_requests, 128 (given: 129)"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": as_openai([])}, "response_format: the schema must be a JSON object"),
        ({"tools": BROKEN_TOOLS}, "tools: the schema cannot be honoured"),
        ({"max_tokens": 0}, "max_tokens: must be above 0 (given: 0)"),
        ({"max_tokens": 1024}, "max_tokens: with the prompt must be at most max_total_tokens, 1024"),
        ({"top_logprobs": 6}, "top_logprobs: must be at most max_top_n_tokens, 5 (given: 6)"),
        ({"presence_penalty": -2}, "presence_penalty + 2: must be above 0 (given: 0.0)"),
        ({"tool_choice": 5}, "tool_choice: must be auto, none, required, or a function (given: 5)"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.object.function: "),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"stop": 5}, "stop"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages.0.content.list.0: "),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "messages.0.content: must be a text or a list of parts",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.0.tool_calls.0.id: "),
        ({"messages": ["Hi"]}, "messages.0: must be a JSON object (given: 'Hi')"),
    ],
)
async def test_what_is_wrong_is_named(router: Router, fields: dict[str, Any], named: str) -> None:
    response = await router.chat(**fields)
    assert response.status_code == 422
    assert named in response.text
    assert not router.engine.submitted


# -- several choices -------------------------------------------------------------------------------------------


async def test_as_many_choices_as_asked_for(router: Router) -> None:
    router.engine.play_in_turn([Script(" one two"), Script(" three"), Script(" four five six")])
    body = (await router.chat(n=3, seed=2**64 - 1, temperature=1, logprobs=True)).json()
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == [" one two", " three", " four five six"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [len(choice["logprobs"]["content"]) for choice in body["choices"]] == [3, 2, 4]
    prompt_tokens = len(router.engine.submitted[0].prompt_ids)
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 9,
        "total_tokens": prompt_tokens + 9,
    }
    assert [request.sampling.seed for request in router.engine.submitted] == [2**64 - 1, 0, 1]


async def test_choices_in_a_stream(router: Router) -> None:
    router.engine.play_in_turn([Script(" one two"), Script(" three")])
    events = await router.chat_events(n=2, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == [] and events[-2]["usage"]["completion_tokens"] == 5
    texts = {0: "", 1: ""}
    for event in events[:-2]:
        texts[event["choices"][0]["index"]] += event["choices"][0]["delta"]["content"]
    assert texts == {0: " one two", 1: " three"}


async def test_a_choice_that_fails_does_not_end_the_others_in_a_stream(router: Router) -> None:
    router.engine.play_in_turn([Script(prefill_error="out of blocks"), Script(" three")])
    events = await router.chat_events(n=2, stream_options={"include_usage": True})
    assert sum("error" in event for event in events) == 1
    assert [event["choices"][0]["delta"]["content"] for event in events if "choices" in event] == [
        " three",
        "",
    ]
    assert events[-1] == "[DONE]"


async def test_choices_that_each_call_or_do_not(router: Router) -> None:
    scripts = ['{"function": {"_name": "f"}}', '{"function": {"_name": "no_tool"}}', " Plain."]
    router.engine.play_in_turn(map(Script, scripts))
    tools = [{"type": "function", "function": {"name": "f"}}]
    choices = (await router.chat(n=2, tools=tools)).json()["choices"]
    # Grammars are checked by threads: either choice may come to the engine first.
    plain, calling = sorted(
        (choice["message"] for choice in choices), key=lambda message: "content" not in message
    )
    assert calling["tool_calls"][0]["function"] == {"description": None, "name": "f", "arguments": "{}"}
    assert plain == {"role": "assistant", "content": " Plain."}


async def test_strict_mode_gives_one_choice(strict_router: Router) -> None:
    assert len((await strict_router.chat(n=3)).json()["choices"]) == 1
    assert len((await strict_router.complete(prompt="Hi", n=3)).json()["choices"]) == 1
    assert (await strict_router.complete(prompt="Hi", n="x")).status_code == 200


async def test_choices_of_several_prompts(router: Router) -> None:
    router.engine.play_in_turn(map(Script, [" a", " b", " c", " d"]))
    body = (await router.complete(prompt=["Hi", "one two three"], n=2, seed=4)).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, " a"),
        (1, " b"),
        (2, " c"),
        (3, " d"),
    ]
    assert [request.prompt for request in router.engine.submitted] == [
        "Hi",
        "Hi",
        "one two three",
        "one two three",
    ]
    assert [request.sampling.seed for request in router.engine.submitted] == [4, 5, 4, 5]
    assert body["usage"] == {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}


# -- completions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "reached"),
    [
        ([26843], [(26843,)]),
        ([[26843], [582, 827]], [(26843,), (582, 827)]),
        (["Hi", " one two"], [(26843,), (582, 827)]),
    ],
)
async def test_prompts_as_tokens(
    router: Router, strict_router: Router, prompt: Any, reached: list[tuple[int, ...]]
) -> None:
    response = await router.complete(prompt=prompt, max_tokens=2)
    assert [choice["text"] for choice in response.json()["choices"]] == [" Deep learning"] * len(reached)
    assert [request.prompt_ids for request in router.engine.submitted] == reached
    characters = sum(len(request.prompt) for request in router.engine.submitted)
    assert response.headers["x-compute-characters"] == str(characters)
    assert response.headers["x-prompt-tokens"] == str(sum(map(len, reached)))
    strict = await strict_router.complete(prompt=prompt, max_tokens=2)
    assert strict.status_code == (200 if isinstance(prompt[0], str) else 422)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": [49152]}, "prompt: tokens must be below 49152 (given: 49152)"),
        ({"prompt": []}, "prompt: must be a text, tokens, or a list of either, and not empty (given: [])"),
        ({"prompt": [[]]}, "prompt: must not be empty"),
        ({"prompt": 5}, "prompt: must be a text, tokens, or a list of either, and not empty (given: 5)"),
        ({"prompt": ["Hi", 5]}, "prompt.texts.1: "),
        ({"prompt": [-1]}, "prompt.tokens.0: "),
        ({"prompt": [True]}, "prompt.tokens.0: "),
        ({"prompt": [[1], ["a"]]}, "prompt.lists.1.0: "),
        ({"prompt": "Hi", "max_tokens": 0}, "max_tokens: must be above 0 (given: 0)"),
        ({"prompt": "Hi", "n": 129}, "n: must be at most max_concurrent_requests, 128 (given: 129)"),
    ],
)
async def test_prompts_that_are_refused(router: Router, fields: dict[str, Any], named: str) -> None:
    response = await router.complete(**fields)
    assert response.status_code == 422
    assert named in response.text
    assert not router.engine.submitted


async def test_several_prompts_stream_in_turn(router: Router) -> None:
    router.engine.play_in_turn(map(Script, [" one two three", " four", " five six"]))
    response = await router.complete(prompt=["a", "b", "c"], stream=True)
    events = read_events(response.content)
    assert [(event["choices"][0]["index"], event["choices"][0]["text"]) for event in events[:-1]] == [
        (0, " one"),
        (1, " four"),
        (2, " five"),
        (0, " two"),
        (1, "<|im_end|>"),
        (2, " six"),
        (0, " three"),
        (2, "<|im_end|>"),
        (0, "<|im_end|>"),
    ]
    assert events[-1] == "[DONE]"
    assert response.headers["x-compute-characters"] == "3"


# -- other routes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/responses"])
async def test_routes_that_this_server_does_not_have(
    router: Router, strict_router: Router, path: str
) -> None:
    response = await router.client.post(path, json={"input": "Hi"})
    assert (response.status_code, response.json()["error_type"]) == (404, "not_found")
    assert path in response.json()["error"]
    strict = await strict_router.client.post(path, json={"input": "Hi"})
    assert (strict.status_code, strict.content) == (404, b"")


async def test_invocations_and_vertex_take_the_wider_forms(router: Router) -> None:
    chat = {"messages": MESSAGES, "max_tokens": 1, "stop": "x"}
    answer = await router.client.post("/invocations", json=chat)
    assert answer.json()["choices"][0]["message"]["content"] == " Deep"
    answer = await router.client.post("/invocations", json={"prompt": [26843], "max_tokens": 1})
    assert answer.json()["choices"][0]["text"] == " Deep"
    answer = await router.client.post("/vertex", json={"instances": [chat, {"inputs": "Hi"}]})
    assert answer.json() == {"predictions": [" Deep", " Deep learning is a part of machine learning."]}
