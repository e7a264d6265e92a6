"""vLLM's engine arguments in a model.json for Triton's vLLM backend: which of them can be honoured here."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any

from pageport.core import ConfigError

# They change how vLLM works inside or what it logs, not what a client gets. Ignored, and named in the log.
_IGNORED = frozenset(
    {
        "async_scheduling",
        "compilation_config",
        "cuda_graph_sizes",
        "disable_custom_all_reduce",
        "disable_log_requests",
        "disable_log_stats",
        "distributed_executor_backend",
        "download_dir",
        "enable_chunked_prefill",
        "enable_log_requests",
        "enable_prefix_caching",
        "guided_decoding_backend",
        "limit_mm_per_prompt",
        "long_prefill_token_threshold",
        "max_cpu_loras",
        "max_log_len",
        "max_logprobs",
        "max_long_partial_prefills",
        "max_lora_rank",
        "max_loras",
        "max_num_partial_prefills",
        "max_parallel_loading_workers",
        "max_seq_len_to_capture",
        "num_gpu_blocks_override",
        "preemption_mode",
        "scheduler_delay_factor",
        "served_model_name",
        "swap_space",
        "trust_remote_code",
        "use_v2_block_manager",
        "worker_use_ray",
    }
)

# They change answers, or what fits where: only the values listed can be honoured. None: the key set to null.
_HONOURED_AT: Mapping[str, tuple[Any, ...]] = {
    "chat_template": (None,),
    "cpu_offload_gb": (None, 0),
    "data_parallel_size": (None, 1),
    "enable_expert_parallel": (None, False),
    "enable_lora": (None, False),
    "enable_prompt_embeds": (None, False),
    "fully_sharded_loras": (None, False),
    "hf_overrides": (None, {}),
    "kv_cache_dtype": (None, "auto"),
    "load_format": (None, "auto", "safetensors"),
    "logits_processors": (None, []),
    "lora_modules": (None, []),
    "model_impl": (None, "auto"),
    "num_speculative_tokens": (None,),
    "override_generation_config": (None, {}),
    "pipeline_parallel_size": (None, 1),
    "qlora_adapter_name_or_path": (None,),
    "revision": (None,),
    "rope_scaling": (None, {}),
    "rope_theta": (None,),
    "runner": (None, "auto", "generate"),
    "skip_tokenizer_init": (None, False),
    "speculative_config": (None,),
    "speculative_model": (None,),
    "task": (None, "auto", "generate"),
    "tensor_parallel_size": (None, 1),
    "tokenizer_mode": (None, "auto", "slow"),
    "tokenizer_revision": (None,),
}

_DTYPES = {"half": "float16", "float": "float32"}


class VllmArgument(enum.Enum):
    """What becomes of an argument that is not one of our own."""

    IGNORED = "changes nothing that a client could see"
    UNKNOWN = "unknown"


def judge_vllm_argument(name: str, value: Any) -> VllmArgument:
    """Whether an argument can be left aside.

    Raises:
        ConfigError: leaving it aside would change answers; names the argument and the possible values.
    """
    if name in _IGNORED:
        return VllmArgument.IGNORED
    if name not in _HONOURED_AT:
        return VllmArgument.UNKNOWN
    if meaning_of(value) in _HONOURED_AT[name]:
        return VllmArgument.IGNORED
    possible = " or ".join(repr(choice) for choice in _HONOURED_AT[name] if choice is not None) or "null"
    raise ConfigError(f"{name}: {value!r:.100} is not supported; possible: {possible}")


def meaning_of(value: Any) -> Any:
    """The JSON value that a text in config.pbtxt stands for: 1 for "1", False for "False", None for "none"."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads({"none": "null"}.get(value.lower(), value.lower()))
    except json.JSONDecodeError:
        return value


def translate_dtype(value: Any) -> Any:
    """vLLM's other names of data types."""
    return _DTYPES.get(value, value) if isinstance(value, str) else value
