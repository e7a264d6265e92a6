"""The table of cosines and sines that rotary embeddings look up (RoFormer, arXiv 2104.09864)."""

from __future__ import annotations

import math

import torch

from pageport.core.model.rope_config import RopeConfig, RopeType


def cos_sin_table(config: RopeConfig, num_positions: int, device: torch.device) -> torch.Tensor:
    """float32 [num_positions, dim]: cosines of the dim/2 frequencies, then their sines."""
    frequencies, magnitude = _frequencies(config)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return (torch.cat([angles.cos(), angles.sin()], dim=-1) * magnitude).to(device)


def _frequencies(config: RopeConfig) -> tuple[torch.Tensor, float]:
    """float32 [dim / 2] radians per position, and the factor on cosines and sines."""
    exponents = torch.arange(0, config.dim, 2, dtype=torch.int64).to(torch.float32) / config.dim
    base = 1.0 / config.theta**exponents
    match config.type:
        case RopeType.DEFAULT:
            return base, 1.0
        case RopeType.LINEAR:
            return base / config.factor, 1.0
        case RopeType.LLAMA3:
            return _llama3(config, base), 1.0
        case RopeType.YARN:
            return _yarn(config, base), _yarn_magnitude(config)


def _llama3(config: RopeConfig, base: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: long waves are stretched by `factor`, short ones kept, those between blended."""
    turns = config.original_max_positions * base / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return kept * base + (1 - kept) * base / config.factor


def _yarn(config: RopeConfig, base: torch.Tensor) -> torch.Tensor:
    """YaRN (arXiv 2309.00071, section 3.2): a linear ramp between kept and interpolated dimensions."""

    def dimension_of(turns: float) -> float:
        """The (fractional) index of the frequency that makes so many turns in the trained context."""
        ratio = config.original_max_positions / (turns * 2 * math.pi)
        return config.dim * math.log(ratio) / (2 * math.log(config.theta))

    low, high = dimension_of(config.beta_fast), dimension_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.dim - 1)
    width = (high - low) or 0.001
    interpolated = ((torch.arange(config.dim // 2, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return base / config.factor * interpolated + base * (1 - interpolated)


def _yarn_magnitude(config: RopeConfig) -> float:
    """YaRN's attention temperature, section 3.4: equation 22, or the ratio of two of DeepSeek's kind."""
    if config.attention_factor is not None:
        return config.attention_factor

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0

    if config.mscale and config.mscale_all_dim:
        return scale(config.mscale) / scale(config.mscale_all_dim)
    return scale(1.0)
