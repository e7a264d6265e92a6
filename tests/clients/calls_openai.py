"""openai.OpenAI. Arguments: URLs of a router, and of others whose model calls a tool, writes a person as JSON, says
that it calls no tool and then answers.
"""

from __future__ import annotations

import sys

from calls import MESSAGES, PERSON, WEATHER, Calls
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str


def main(url: str, tool_url: str, json_url: str, no_tool_url: str) -> None:
    calls = Calls()
    client, tools, person, no_tool = (
        OpenAI(base_url=f"{each}/v1", api_key="-", max_retries=0)
        for each in (url, tool_url, json_url, no_tool_url)
    )

    def chat(messages=MESSAGES, model="tgi", max_tokens=4, of=client, **options):  # type: ignore[no-untyped-def]
        return of.chat.completions.create(model=model, messages=messages, max_tokens=max_tokens, **options)

    def text(**options):  # type: ignore[no-untyped-def]
        return _answer(chat(**options))

    calls.add("models", lambda: [[m.id, m.created, m.owned_by] for m in client.models.list().data])
    calls.add("chat", text)
    calls.add("stream", lambda: [c.choices[0].delta.content for c in chat(stream=True) if c.choices])
    calls.add(
        "usage",
        lambda: list(chat(stream=True, stream_options={"include_usage": True}))[-1].usage.total_tokens,
    )
    calls.add(
        "max_completion_tokens",
        lambda: _answer(
            client.chat.completions.create(model="tgi", messages=MESSAGES, max_completion_tokens=4)
        ),
    )
    calls.add("both limits", lambda: text(extra_body={"max_completion_tokens": 2}))
    for name, options in {
        "temperature 0": {"temperature": 0},
        "top_p 1": {"top_p": 1},
        "stop string": {"stop": "x"},
        "stop list": {"stop": ["x"]},
        "logit_bias": {"logit_bias": {"5": 1}},
        "json_object": {"response_format": {"type": "json_object"}},
        "json_schema": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
        },
        "format text": {"response_format": {"type": "text"}},
        "empty content": {"messages": [*MESSAGES, {"role": "assistant", "content": ""}, *MESSAGES]},
        "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        "developer": {"messages": [{"role": "developer", "content": "Be brief."}, *MESSAGES]},
        "empty model": {"model": ""},
        "bad temperature": {"temperature": -1},
    }.items():
        calls.add(name, lambda options=options: text(**options))
    calls.add("bad temperature stream", lambda: list(chat(temperature=-1, stream=True)))
    calls.add("n", lambda: [choice.index for choice in chat(n=2).choices])
    calls.add(
        "logprobs",
        lambda: [
            [entry.token, entry.logprob, [top.token for top in entry.top_logprobs]]
            for entry in chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        ],
    )
    calls.add("tools", lambda: _tool(chat(of=tools, max_tokens=80, tools=[WEATHER])))
    calls.add(
        "tools strict",
        lambda: _tool(
            chat(
                of=tools, max_tokens=80, parallel_tool_calls=False,
                tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": True}}],
            )
        ),
    )  # fmt: skip
    calls.add("tools stream", lambda: _joined(chat(of=tools, max_tokens=80, tools=[WEATHER], stream=True)))
    bare = {"type": "function", "function": {"name": "get_weather"}}
    calls.add(
        "tools without parameters",
        lambda: chat(of=tools, max_tokens=80, tools=[bare]).choices[0].finish_reason,
    )
    calls.add(
        "tool result", lambda: text(of=no_tool, max_tokens=40, messages=_after_a_tool(), tools=[WEATHER])
    )

    def completion(prompt="Hi", **options):  # type: ignore[no-untyped-def]
        return client.completions.create(model="tgi", prompt=prompt, max_tokens=3, **options)

    calls.add("completion", lambda: [completion().choices[0].text, completion().usage.total_tokens])
    calls.add("completion stream", lambda: [c.choices[0].text for c in completion(stream=True)])
    calls.add("completion echo", lambda: completion(echo=True, logprobs=2).choices[0].text)
    calls.add("completion token ids", lambda: completion(prompt=[1, 2, 3]).choices[0].text)
    calls.add("completion n", lambda: [choice.index for choice in completion(n=2).choices])
    calls.add(
        "parse",
        lambda: person.chat.completions.parse(
            model="tgi", messages=MESSAGES, max_tokens=60, response_format=Person
        ).choices[0].message.parsed.name,
    )  # fmt: skip
    calls.add("responses", lambda: client.responses.create(model="tgi", input="Hi"))
    calls.add("embeddings", lambda: client.embeddings.create(model="tgi", input="Hi"))
    calls.print()


def _after_a_tool():  # type: ignore[no-untyped-def]
    call = {
        "id": "0",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
    }
    return [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "0", "content": "18C"},
    ]


def _answer(output):  # type: ignore[no-untyped-def]
    return [output.choices[0].message.content, output.choices[0].finish_reason]


def _tool(output):  # type: ignore[no-untyped-def]
    (call,) = output.choices[0].message.tool_calls
    return [call.id, call.function.name, call.function.arguments]


def _joined(chunks):  # type: ignore[no-untyped-def]
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    return [calls[0].function.name, "".join(call.function.arguments for call in calls)]


if __name__ == "__main__":
    main(*sys.argv[1:])
