"""Engine arguments: one frozen object, validated once; the names of vLLM where one exists."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from pageport.core.errors import ConfigError

DType = Literal["auto", "float32", "bfloat16", "float16"]


class KernelBackend(enum.StrEnum):
    """Which implementation of the kernels runs; `auto` takes the fastest that works here."""

    AUTO = "auto"
    REFERENCE = "reference"
    CPU = "cpu"
    GPU = "gpu"


class WaitPolicy(enum.StrEnum):
    """What CPU threads do while they wait for each other between two pieces of work."""

    BRIEF = "brief"
    PASSIVE = "passive"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class EngineConfig:
    """All that an engine can be told. Unset (None) sizes are derived from the model and machine."""

    model: Path = Field(description="a Hugging Face model folder, or a .gguf file")
    tokenizer: Path | None = Field(default=None, description="tokenizer folder; None: the model's own")
    dtype: DType = Field(default="auto", description="auto: what is fast on this device")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    quantization: Literal["gguf"] | None = Field(
        default=None,
        description="gguf: compute with a .gguf file's 4- and 8-bit blocks as they are (CPU, bfloat16): a third of "
        "the memory, and quickest for up to six streams; None: turn all weights into dtype, quickest for more",
    )
    max_model_len: int | None = Field(
        default=None, ge=1, description="tokens; None: what model and memory allow"
    )
    block_size: int = Field(default=16, ge=1, le=256, description="tokens a KV block holds")
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1, description="bytes for KV blocks")
    gpu_memory_utilization: float = Field(
        default=0.3,
        gt=0.0,
        le=1.0,
        description="share of the device's free memory for KV blocks where no size is given",
    )
    max_num_seqs: int = Field(default=64, ge=1, description="sequences that run at once")
    max_num_batched_tokens: int = Field(default=512, ge=1, description="tokens one step computes at most")
    enable_prefix_caching: bool = Field(
        default=True, description="share the full KV blocks of equal prompt beginnings between requests"
    )
    exact_recompute: bool = Field(
        default=True,
        description="generated tokens whose KV was lost (preemption, engine death) are computed again one a step, by "
        "the kernels that computed them first, so that the answer is bit for bit the same; false: as a prompt, quicker",
    )
    watermark: float = Field(
        default=0.01, ge=0.0, lt=1.0, description="share of blocks kept free when a new request is admitted"
    )
    num_threads: int | None = Field(default=None, ge=1, description="CPU threads; None: all cores")
    omp_wait_policy: WaitPolicy = Field(
        default=WaitPolicy.BRIEF,
        description="what CPU threads do while they wait for each other: brief: spin for some tens of microseconds, "
        "then sleep; passive: sleep at once, for a machine with other busy programs; active: spin without end",
    )
    kernel_backend: KernelBackend = KernelBackend.AUTO
    enforce_eager: bool = Field(
        default=False,
        description="launch each kernel of a decode step by itself, instead of replaying CUDA graphs (GPU only): "
        "starts sooner, and takes less memory",
    )
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**64,
        description="makes the seeds of unseeded requests repeat; None: random ones",
    )


_ADAPTER = TypeAdapter(EngineConfig)


def parse_engine_config(values: Mapping[str, Any]) -> EngineConfig:
    """Build an `EngineConfig` from text or JSON values.

    Raises:
        ConfigError: naming the argument, the limit and the value given.
    """
    try:
        return _ADAPTER.validate_python(dict(values))
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']} (given: {item['input']!r:.100})"
            for item in error.errors(include_url=False)
        ]
        raise ConfigError("; ".join(problems)) from None
