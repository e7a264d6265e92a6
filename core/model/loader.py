"""From a model folder or a GGUF file to a decoder that is ready to run."""

from __future__ import annotations

from pathlib import Path

import torch

from pageport.core.errors import ConfigError, ModelError
from pageport.core.model.assembler import assemble_model
from pageport.core.model.gguf_source import GgufSource, read_gguf_config
from pageport.core.model.llama import LlamaForCausalLM
from pageport.core.model.model_config import ModelConfig, read_model_config
from pageport.core.model.weight_source import SafetensorsSource
from pageport.kernels import Kernels


def load_model_config(path: Path) -> ModelConfig:
    """The configuration of a model folder or a .gguf file. Raises ModelError."""
    if not path.exists():
        raise ModelError(f"there is no model at {path}")
    return read_gguf_config(path) if path.suffix == ".gguf" else read_model_config(path)


def load_model(
    path: Path, *, dtype: torch.dtype, device: torch.device, kernels: Kernels, quantised: bool = False
) -> LlamaForCausalLM:
    """Load weights, converted to `dtype`, one tensor at a time.

    Args:
        quantised: compute with a GGUF's 4- and 8-bit blocks as they are, on the CPU in bfloat16.

    Raises:
        ConfigError: `quantised`, but not such a file, device or type.
        ModelError: a tensor is missing, unexpected or of the wrong shape; or no weights can be read.
    """
    config = load_model_config(path)
    if quantised and not (path.suffix == ".gguf" and device.type == "cpu" and dtype is torch.bfloat16):
        raise ConfigError(
            f"quantization: gguf is for a .gguf file on the CPU in bfloat16, not {path.name} on {device} in {dtype}"
        )
    if path.suffix == ".gguf":
        gguf = GgufSource(path)
        return assemble_model(
            config, gguf, dtype=dtype, device=device, kernels=kernels, blocks=gguf if quantised else None
        )
    with SafetensorsSource(path) as source:
        return assemble_model(config, source, dtype=dtype, device=device, kernels=kernels)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto`: bfloat16 where the processor computes in it, else float32 (CPU) or float16 (GPU).

    Raises:
        ConfigError: float16 on a CPU, which has no fast products for it.
    """
    if name == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
        return torch.bfloat16 if _cpu_computes_bfloat16() else torch.float32
    if name == "float16" and device.type == "cpu":
        raise ConfigError("dtype: float16 is not supported on the CPU; use bfloat16 or float32")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _cpu_computes_bfloat16() -> bool:
    """Whether there are instructions for it; emulated, it would be slower than float32."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
