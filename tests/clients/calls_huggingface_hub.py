"""huggingface_hub.InferenceClient. Arguments: the router's URL; that of one whose model calls a tool."""

from __future__ import annotations

import sys

from calls import MESSAGES, PERSON, WEATHER, Calls
from huggingface_hub import InferenceClient


def main(url: str, tool_url: str) -> None:
    calls = Calls()
    client, tools = InferenceClient(url), InferenceClient(tool_url)
    text, chat = client.text_generation, client.chat_completion
    calls.add("text", lambda: text("Hi", max_new_tokens=3))
    calls.add(
        "details", lambda: _details(text("Hi", max_new_tokens=3, details=True, decoder_input_details=True))
    )
    calls.add("stream", lambda: list(text("Hi", max_new_tokens=3, stream=True)))
    calls.add(
        "stream details",
        lambda: [
            [event.index, event.token.id, [token.id for token in event.top_tokens], event.generated_text]
            for event in text("Hi", max_new_tokens=3, stream=True, details=True, top_n_tokens=2)
        ],
    )
    calls.add("stop", lambda: text("Hi", max_new_tokens=20, stop=[" part"]))
    calls.add(
        "every parameter",
        lambda: text(
            "Hi", max_new_tokens=3, do_sample=True, temperature=0.7, top_k=5, top_p=0.9, seed=1, best_of=1,
            watermark=True, repetition_penalty=1.1, typical_p=0.9, truncate=5, return_full_text=True,
        ),
    )  # fmt: skip
    calls.add("grammar", lambda: text("Hi", max_new_tokens=3, grammar={"type": "regex", "value": "[a-z]+"}))
    calls.add("empty", lambda: text("", max_new_tokens=3))
    calls.add("chat", lambda: _answer(chat(MESSAGES, max_tokens=3)))
    calls.add(
        "chat stream",
        lambda: [c.choices[0].delta.content for c in chat(MESSAGES, max_tokens=3, stream=True) if c.choices],
    )
    calls.add(
        "chat usage",
        lambda: [
            c.usage and c.usage.total_tokens
            for c in chat(MESSAGES, max_tokens=3, stream=True, stream_options={"include_usage": True})
        ],
    )
    calls.add(
        "chat tools",
        lambda: _tool(tools.chat_completion(MESSAGES, max_tokens=80, tools=[WEATHER]).choices[0].message),
    )
    calls.add(
        "chat tools stream",
        lambda: _joined(
            tools.chat_completion(
                MESSAGES, max_tokens=80, tools=[WEATHER], tool_choice="required", stream=True
            )
        ),
    )
    json_format = {"type": "json", "value": PERSON}
    calls.add("format json", lambda: _answer(chat(MESSAGES, max_tokens=3, response_format=json_format)))
    schema_format = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    calls.add("format schema", lambda: _answer(chat(MESSAGES, max_tokens=3, response_format=schema_format)))
    calls.add(
        "chat logprobs",
        lambda: [
            [entry.token, entry.logprob, [top.token for top in entry.top_logprobs]]
            for entry in chat(
                MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2, seed=1, temperature=0.5, top_p=0.9,
                presence_penalty=0.1, frequency_penalty=0.1, stop=["x"],
            ).choices[0].logprobs.content
        ],
    )  # fmt: skip
    # The library itself refuses these without a model's name.
    calls.add("health", lambda: client.health_check())
    calls.add("info", lambda: client.get_endpoint_info())
    calls.print()


def _details(output):  # type: ignore[no-untyped-def]
    details = output.details
    return [
        output.generated_text,
        details.finish_reason,
        [[token.id, token.logprob] for token in details.prefill],
        [[token.id, token.text, token.logprob] for token in details.tokens],
    ]


def _answer(output):  # type: ignore[no-untyped-def]
    choice = output.choices[0]
    return [choice.message.content, choice.finish_reason, output.usage.total_tokens]


def _tool(message):  # type: ignore[no-untyped-def]
    (call,) = message.tool_calls
    return [call.id, call.function.name, call.function.arguments]


def _joined(chunks):  # type: ignore[no-untyped-def]
    """Name and arguments of the tool call that a stream brings in pieces."""
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    return [calls[0].function.name, "".join(call.function.arguments for call in calls)]


if __name__ == "__main__":
    main(*sys.argv[1:])
