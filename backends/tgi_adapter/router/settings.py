"""Every setting of the router, under the names of the launcher's flags."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from pageport.core import ConfigError, EngineInfo, Watermark

# The version of Text Generation Inference whose HTTP interface this is; clients read it from /info.
TGI_VERSION = "3.3.6-dev0"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """How the router behaves; the defaults are TGI's.

    Attributes:
        model_id: what clients are told that they talk to.
        max_input_tokens, max_total_tokens: of one request: its prompt; its prompt and answer together. 0: what the
            engine can hold; known after `resolved`.
        payload_limit: bytes of a request's body.
        compute_type: the header `x-compute-type`.
        model_pipeline_tag: `text-generation` or None make `POST /` answer with the prompt in front.
        enable_prefill_logprobs: without it, `decoder_input_details` brings an empty list, as with TGI's server.
        watermark: what `watermark: true` switches on.
        tokenizer_config_path: instead of the model's `tokenizer_config.json`, for chat templates.
        graceful_termination_timeout: seconds that running requests may go on after SIGTERM.
        json_output: the log as JSON lines.
        strict: answers as TGI does also where TGI refuses what its clients document.
    """

    model_id: str
    max_input_tokens: int = 0
    max_total_tokens: int = 0
    model_sha: str | None = None
    model_pipeline_tag: str | None = None
    docker_label: str | None = None
    max_concurrent_requests: int = 128
    max_best_of: int = 2
    max_stop_sequences: int = 4
    max_top_n_tokens: int = 5
    max_client_batch_size: int = 4
    validation_workers: int = 2
    payload_limit: int = 2_000_000
    hostname: str = "0.0.0.0"
    port: int = 3000
    api_key: str | None = None
    cors_allow_origin: tuple[str, ...] = ()
    disable_grammar_support: bool = False
    enable_prefill_logprobs: bool = False
    watermark: Watermark = field(default_factory=Watermark)
    tokenizer_config_path: Path | None = None
    compute_type: str = "gpu+optimized"
    json_output: bool = False
    log_level: str = "info"
    otlp_endpoint: str | None = None
    otlp_service_name: str = "text-generation-inference.router"
    graceful_termination_timeout: float = 90.0
    strict: bool = False

    def resolved(self, info: EngineInfo) -> RouterSettings:
        """With the limits that this engine allows.

        Raises:
            ConfigError: the limits are more than the engine can hold, or leave no room for an answer.
        """
        total = self.max_total_tokens or info.max_model_len
        inputs = self.max_input_tokens or total - 1
        if total > info.max_model_len:
            raise ConfigError(
                f"max_total_tokens: {total} is more than the engine holds, {info.max_model_len}"
            )
        if not 0 < inputs < total:
            raise ConfigError(f"max_input_tokens: {inputs} must be from 1 to below max_total_tokens, {total}")
        return replace(self, max_input_tokens=inputs, max_total_tokens=total)
