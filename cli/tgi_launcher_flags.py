"""The flags of TGI's launcher and router: names, types and defaults are TGI's; each has its environment form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

_QUANTIZE = (
    "awq", "compressed-tensors", "eetq", "exl2", "gptq", "marlin", "bitsandbytes", "bitsandbytes-nf4",
    "bitsandbytes-fp4", "fp8",
)  # fmt: skip
_PORT = click.IntRange(0, 65535)


class Flag(NamedTuple):
    """One flag; `type` bool is a switch. `help` says what it does here.

    Attributes:
        short: a letter that does the same.
        variable: whether it has an environment form.
    """

    name: str
    type: Any = str
    default: Any = None
    help: str = ""
    short: str | None = None
    variable: bool = True

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"


LAUNCHER_FLAGS = (
    Flag("model_id", help="a folder, a .gguf file, 'demo', or a name on the hub"),
    Flag("revision", help="of a name on the hub"),
    Flag("validation_workers", click.IntRange(0), 2, "threads that tokenise long prompts"),
    Flag("sharded", click.BOOL, help="several ranks; needs TGI's own launcher"),
    Flag("num_shard", click.IntRange(1), help="ranks; more than one needs TGI's own launcher"),
    Flag("quantize", click.Choice(_QUANTIZE), help="weights are used as they are, or refused"),
    Flag("speculate", click.IntRange(0), help="no effect: no tokens are speculated"),
    Flag("dtype", click.Choice(("float16", "bfloat16", "float32", "auto")), help="float32 and auto are ours"),
    Flag("kv_cache_dtype", click.Choice(("fp8_e4m3fn", "fp8_e5m2")), help="no effect: the model's own type"),
    Flag("trust_remote_code", bool, False, "no effect: code of a model is never run"),
    Flag("max_concurrent_requests", click.IntRange(1), 128, "more than these are answered 429"),
    Flag("max_best_of", click.IntRange(1), 2, "answers of which a client may ask for the best"),
    Flag("max_stop_sequences", click.IntRange(0), 4, "of one request"),
    Flag("max_top_n_tokens", click.IntRange(0), 5, "alternatives to each token"),
    Flag("max_input_tokens", click.IntRange(1), help="of a prompt; default: all but one of max_total_tokens"),
    Flag("max_input_length", click.IntRange(1), help="the old name of max_input_tokens"),
    Flag(
        "max_total_tokens",
        click.IntRange(1),
        help="of prompt and answer; default: what model and memory allow",
    ),
    Flag("waiting_served_ratio", float, 0.3, "no effect: the engine batches by itself"),
    Flag(
        "max_batch_prefill_tokens",
        click.IntRange(1),
        help="tokens that one step of the engine computes at most; see also --max-num-batched-tokens",
    ),
    Flag("max_batch_total_tokens", click.IntRange(1), help="no effect: --kv-cache-memory-bytes decides"),
    Flag("max_waiting_tokens", click.IntRange(0), 20, "no effect: the engine batches by itself"),
    Flag("max_batch_size", click.IntRange(1), help="sequences that run at once"),
    Flag("cuda_graphs", help="no effect"),
    Flag("hostname", str, "0.0.0.0", "address to listen on"),
    Flag("port", _PORT, 3000, "to listen on", short="p"),
    Flag("prometheus_port", _PORT, 9000, "no effect: metrics are at /metrics"),
    Flag("shard_uds_path", str, "/tmp/text-generation-server", "no effect: there is no shard"),
    Flag("master_addr", str, "localhost", "no effect: for several ranks"),
    Flag("master_port", _PORT, 29500, "no effect: for several ranks"),
    Flag("huggingface_hub_cache", help="folder of the hub's cache"),
    Flag("weights_cache_override", help="refused: give the folder as --model-id"),
    Flag("disable_custom_kernels", bool, False, "no effect; see --kernel-backend"),
    Flag(
        "cuda_memory_fraction",
        click.FloatRange(0.0, 1.0, min_open=True),
        1.0,
        "share of a GPU's free memory for the KV cache",
    ),
    Flag("rope_scaling", click.Choice(("linear", "dynamic")), help="refused: put it into config.json"),
    Flag("rope_factor", float, help="with --rope-scaling"),
    Flag("json_output", bool, False, "log as JSON lines"),
    Flag("otlp_endpoint", help="where OpenTelemetry traces go, over gRPC"),
    Flag("otlp_service_name", str, "text-generation-inference.router", "of the traces"),
    Flag("cors_allow_origin", help="may be repeated"),
    Flag("api_key", help="clients have to send it as a bearer token"),
    Flag(
        "watermark_gamma",
        click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
        help="share of the vocabulary that a watermark favours",
    ),
    Flag("watermark_delta", float, help="how much it does"),
    Flag("ngrok", bool, False, "refused"),
    Flag("ngrok_authtoken", help="refused"),
    Flag("ngrok_edge", help="refused"),
    Flag("tokenizer_config_path", help="instead of the model's tokenizer_config.json, for chat templates"),
    Flag("disable_grammar_support", bool, False, "requests with a grammar are refused"),
    Flag("env", bool, False, "log what it runs on", short="e", variable=False),
    Flag("max_client_batch_size", click.IntRange(1), 4, "prompts in one request"),
    Flag("lora_adapters", help="refused"),
    Flag("usage_stats", click.Choice(("on", "off", "no-stack")), "on", "accepted; nothing is ever sent"),
    Flag("payload_limit", click.IntRange(1), 2_000_000, "bytes of a request's body"),
    Flag("enable_prefill_logprobs", bool, False, "log-probabilities of prompts for those who ask"),
    Flag(
        "graceful_termination_timeout",
        click.IntRange(0),
        90,
        "seconds that running requests get after SIGTERM",
        short="g",
    ),
)

# The router alone, started by hand, has fewer flags, and other defaults for some.
_ROUTER_DEFAULTS = {"waiting_served_ratio": 1.2, "max_batch_prefill_tokens": 4096}
_NOT_THE_ROUTERS = frozenset(
    {
        "model_id", "sharded", "num_shard", "quantize", "speculate", "dtype", "kv_cache_dtype", "max_input_length",
        "cuda_graphs", "shard_uds_path", "master_addr", "master_port", "huggingface_hub_cache", "watermark_gamma",
        "weights_cache_override", "disable_custom_kernels", "cuda_memory_fraction", "rope_scaling", "rope_factor",
        "watermark_delta", "env", "lora_adapters", "enable_prefill_logprobs", "graceful_termination_timeout",
    }
)  # fmt: skip
ROUTER_FLAGS = (
    Flag("tokenizer_name", help="the model: a folder, a .gguf file, 'demo', or a name on the hub"),
    Flag(
        "master_shard_uds_path", help="refused: the engine is in the router; TGI's own router drives a shard"
    ),
    *(
        flag._replace(default=_ROUTER_DEFAULTS.get(flag.name, flag.default))
        for flag in LAUNCHER_FLAGS
        if flag.name not in _NOT_THE_ROUTERS
    ),
    Flag("max_image_fetch_size", click.IntRange(0), 2**30, "no effect: images are not fetched"),
)


def options_of(flags: Sequence[Flag]) -> Callable[[_Command], _Command]:
    """Adds them to a click command."""

    def add(command: _Command) -> _Command:
        for flag in reversed(flags):
            names = (
                [flag.option, flag.name] if flag.short is None else [f"-{flag.short}", flag.option, flag.name]
            )
            settings: dict[str, Any] = {"help": flag.help}
            if flag.variable:
                settings["envvar"] = flag.name.upper()
            if flag.type is bool:
                settings |= {"is_flag": True}
            elif flag.name == "cors_allow_origin":
                settings |= {"multiple": True}
            else:
                settings |= {"type": flag.type, "show_default": flag.default is not None}
            if flag.default is not None:
                settings["default"] = flag.default
            command = click.option(*names, **settings)(command)
        return command

    return add
