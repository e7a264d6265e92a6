"""langchain-huggingface and langchain-openai. Arguments: the router's URL; that of one whose model calls a tool."""

from __future__ import annotations

import sys

from calls import WEATHER, Calls
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint
from langchain_openai import ChatOpenAI


def main(url: str, tool_url: str) -> None:
    calls = Calls()
    endpoint = HuggingFaceEndpoint(endpoint_url=url, max_new_tokens=3, huggingfacehub_api_token="-")
    calls.add("endpoint", lambda: endpoint.invoke("Hi"))
    calls.add("endpoint stream", lambda: list(endpoint.stream("Hi")))
    calls.add("chat huggingface", lambda: ChatHuggingFace(llm=endpoint, model_id="tgi").invoke("Hi").content)

    def chat(base: str, tokens: int) -> ChatOpenAI:
        return ChatOpenAI(base_url=f"{base}/v1", api_key="-", model="tgi", max_tokens=tokens, max_retries=0)

    calls.add("chat openai", lambda: chat(url, 3).invoke("Hi").content)
    calls.add("chat openai stream", lambda: [chunk.content for chunk in chat(url, 3).stream("Hi")])
    calls.add(
        "bind_tools",
        lambda: [
            [call["name"], call["args"], call["id"]]
            for call in chat(tool_url, 80).bind_tools([WEATHER]).invoke("Hi").tool_calls
        ],
    )
    calls.print()


if __name__ == "__main__":
    main(*sys.argv[1:])
