"""text_generation.Client. Arguments: the router's URL; that of one whose engine fails."""

from __future__ import annotations

import sys

from calls import MESSAGES, Calls
from text_generation import Client


def main(url: str, failing_url: str) -> None:
    calls = Calls()
    client, failing = Client(url), Client(failing_url)
    calls.add("generate", lambda: _response(client.generate("Hi", max_new_tokens=3)))
    calls.add(
        "details",
        lambda: _response(
            client.generate("Hi", max_new_tokens=3, decoder_input_details=True, top_n_tokens=2)
        ),
    )
    calls.add("stream", lambda: [e.token.text for e in client.generate_stream("Hi", max_new_tokens=3)])
    calls.add(
        "best_of",
        lambda: len(
            client.generate("Hi", max_new_tokens=3, best_of=2, do_sample=True).details.best_of_sequences
        ),
    )
    calls.add("empty", lambda: _response(client.generate("", max_new_tokens=3)))
    calls.add("temperature 0", lambda: _response(client.generate("Hi", max_new_tokens=3, temperature=0)))
    calls.add("stop", lambda: _response(client.generate("Hi", max_new_tokens=20, stop_sequences=[" part"])))
    calls.add("chat", lambda: client.chat(MESSAGES, max_tokens=3).choices[0].message.content)
    calls.add("chat stream", lambda: list(client.chat(MESSAGES, max_tokens=3, stream=True)))
    calls.add("failing stream", lambda: list(failing.generate_stream("Hi", max_new_tokens=3)))
    calls.add("failing", lambda: failing.generate("Hi", max_new_tokens=3))
    calls.print()


def _response(response):  # type: ignore[no-untyped-def]
    details = response.details
    return [
        response.generated_text,
        details.finish_reason.value,
        [[token.id, token.logprob] for token in details.prefill],
        [[token.id, token.text, token.logprob] for token in details.tokens],
        [[token.id for token in position] for position in details.top_tokens or []],
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
