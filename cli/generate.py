"""`pageport generate`: one prompt, one answer, on the command line."""

from __future__ import annotations

import asyncio
import json

import click

from pageport.cli.engine_options import engine_options, given
from pageport.core import (
    EngineClient,
    EngineConfig,
    PageportError,
    RequestOutput,
    SamplingParams,
    parse_engine_config,
    parse_sampling_params,
    render_chat,
    resolve_model,
)


@click.command()
@click.argument("prompt")
@click.option("--model", default="demo", show_default=True, help="a model folder, a .gguf file, or 'demo'")
@click.option("--max-tokens", default="64", show_default=True, help="new tokens at most")
@click.option("--temperature", default="0", show_default=True, help="0: the most likely token each time")
@click.option("--top-p", default="1", show_default=True)
@click.option("--request-seed", default=None, help="seed of the sampling")
@click.option("--stop", multiple=True, help="end before this text; may be given again")
@click.option("--chat", is_flag=True, help="put the prompt into the model's chat template")
@click.option(
    "--json", "as_json", is_flag=True, help="print text, token_ids, finish_reason and usage as JSON"
)
@engine_options
def generate(
    prompt: str,
    model: str,
    max_tokens: str,
    temperature: str,
    top_p: str,
    request_seed: str | None,
    stop: tuple[str, ...],
    chat: bool,
    as_json: bool,
    **engine: str | None,
) -> None:
    """Answer PROMPT with a model, streaming the text as it comes."""
    params = parse_sampling_params(
        {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": request_seed,
            "stop": stop,
        }
    )
    path = resolve_model(model)
    config = parse_engine_config({"model": path, **given(engine)})
    if chat:
        prompt = render_chat(config.tokenizer or path, [{"role": "user", "content": prompt}])
    output = asyncio.run(_run(config, prompt, params, stream=not as_json))
    if output.error is not None:
        raise PageportError(output.error)
    if as_json:
        click.echo(json.dumps(_as_json(output), ensure_ascii=False))


async def _run(config: EngineConfig, prompt: str, params: SamplingParams, *, stream: bool) -> RequestOutput:
    """The whole answer, merged into one output."""
    client = EngineClient(config)
    try:
        await client.start()
        whole: RequestOutput | None = None
        async for output in client.submit(prompt, params):
            if stream:
                click.echo(output.text, nl=output.request_finished)
            if whole is None:
                whole = output
            else:
                whole.merge(output)
        assert whole is not None
        return whole
    finally:
        await client.close()


def _as_json(output: RequestOutput) -> dict[str, object]:
    return {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "usage": {
            "prompt_tokens": output.num_prompt_tokens,
            "completion_tokens": output.num_output_tokens,
            "total_tokens": output.num_prompt_tokens + output.num_output_tokens,
        },
    }
