"""The flags of `text-generation-launcher`: names, types and defaults are TGI's; each has its environment form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

_QUANTIZE = (
    "awq", "compressed-tensors", "eetq", "exl2", "gptq", "marlin", "bitsandbytes", "bitsandbytes-nf4",
    "bitsandbytes-fp4", "fp8",
)  # fmt: skip


class Flag(NamedTuple):
    """One flag; `type` bool is a switch. `help` says what it does here."""

    name: str
    type: Any = str
    default: Any = None
    help: str = ""

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"


FLAGS = (
    Flag("model_id", help="a folder, a .gguf file, 'demo', or a name on the hub"),
    Flag("revision", help="of a name on the hub"),
    Flag("validation_workers", click.IntRange(0), 2, "threads that tokenise long prompts"),
    Flag("sharded", click.BOOL, help="several ranks; needs TGI's own launcher"),
    Flag("num_shard", click.IntRange(1), help="ranks; more than one needs TGI's own launcher"),
    Flag("quantize", click.Choice(_QUANTIZE)),
    Flag("speculate", click.IntRange(0)),
    Flag("dtype", click.Choice(("float16", "bfloat16", "float32", "auto")), help="float32 and auto are ours"),
    Flag("kv_cache_dtype", click.Choice(("fp8_e4m3fn", "fp8_e5m2"))),
    Flag("trust_remote_code", bool, False),
    Flag("max_concurrent_requests", click.IntRange(1), 128, "more than these are answered 429"),
    Flag("max_best_of", click.IntRange(1), 2),
    Flag("max_stop_sequences", click.IntRange(0), 4),
    Flag("max_top_n_tokens", click.IntRange(0), 5),
    Flag("max_input_tokens", click.IntRange(1), help="of a prompt; default: all but one of max_total_tokens"),
    Flag("max_input_length", click.IntRange(1), help="the old name of max_input_tokens"),
    Flag(
        "max_total_tokens",
        click.IntRange(1),
        help="of prompt and answer; default: what model and memory allow",
    ),
    Flag("waiting_served_ratio", float, 0.3),
    Flag(
        "max_batch_prefill_tokens",
        click.IntRange(1),
        help="tokens that one step of the engine computes at most",
    ),
    Flag("max_batch_total_tokens", click.IntRange(1)),
    Flag("max_waiting_tokens", click.IntRange(0), 20),
    Flag("max_batch_size", click.IntRange(1), help="sequences that run at once"),
    Flag("cuda_graphs"),
    Flag("hostname", str, "0.0.0.0"),
    Flag("port", click.IntRange(0, 65535), 3000),
    Flag("prometheus_port", click.IntRange(0, 65535), 9000),
    Flag("shard_uds_path", str, "/tmp/text-generation-server"),
    Flag("master_addr", str, "localhost"),
    Flag("master_port", click.IntRange(0, 65535), 29500),
    Flag("huggingface_hub_cache"),
    Flag("weights_cache_override"),
    Flag("disable_custom_kernels", bool, False),
    Flag("cuda_memory_fraction", click.FloatRange(0.0, 1.0, min_open=True), 1.0),
    Flag("rope_scaling", click.Choice(("linear", "dynamic"))),
    Flag("rope_factor", float),
    Flag("json_output", bool, False, "log as JSON lines"),
    Flag("otlp_endpoint", help="where OpenTelemetry traces go, over gRPC"),
    Flag("otlp_service_name", str, "text-generation-inference.router"),
    Flag("cors_allow_origin", help="may be repeated"),
    Flag("api_key"),
    Flag("watermark_gamma", click.FloatRange(0.0, 1.0, min_open=True, max_open=True)),
    Flag("watermark_delta", float),
    Flag("ngrok", bool, False),
    Flag("ngrok_authtoken"),
    Flag("ngrok_edge"),
    Flag("tokenizer_config_path"),
    Flag("disable_grammar_support", bool, False),
    Flag("env", bool, False),
    Flag("max_client_batch_size", click.IntRange(1), 4),
    Flag("lora_adapters"),
    Flag("usage_stats", click.Choice(("on", "off", "no-stack")), "on", "accepted; nothing is ever sent"),
    Flag("payload_limit", click.IntRange(1), 2_000_000, "bytes of a request's body"),
    Flag("enable_prefill_logprobs", bool, False),
    Flag(
        "graceful_termination_timeout",
        click.IntRange(0),
        90,
        "seconds that running requests get after SIGTERM",
    ),
)

# Set and without effect with the embedded router: one engine that batches by itself, and no GPU of the launcher's.
NO_EFFECT = (
    "waiting_served_ratio", "max_batch_total_tokens", "max_waiting_tokens", "cuda_graphs", "prometheus_port",
    "shard_uds_path", "master_addr", "master_port", "disable_custom_kernels",
)  # fmt: skip

# Set, these cannot be honoured by the embedded router.
REFUSED = ("ngrok", "ngrok_authtoken", "ngrok_edge", "tokenizer_config_path")


def launcher_flags(command: _Command) -> _Command:
    """Add all of them to a click command."""
    for flag in reversed(FLAGS):
        settings: dict[str, Any] = {"help": flag.help, "envvar": flag.name.upper()}
        if flag.type is bool:
            settings |= {"is_flag": True}
        elif flag.name == "cors_allow_origin":
            settings |= {"multiple": True}
        else:
            settings |= {"type": flag.type, "show_default": flag.default is not None}
        if flag.default is not None:
            settings["default"] = flag.default
        command = click.option(flag.option, flag.name, **settings)(command)
    return command
