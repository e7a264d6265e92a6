"""Rotary embedding parameters, in the spellings that Hugging Face configs have had."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pageport.core.errors import ModelError


class RopeType(enum.StrEnum):
    """How positions beyond those of the training are met."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """`dim`: rotated elements of a head. The rest holds the scaling variant's own parameters."""

    dim: int
    theta: float
    type: RopeType = RopeType.DEFAULT
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


def parse_rope(config: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Read `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Raises:
        ModelError: a variant that is not supported, or rotation of a part of the head only.
    """
    values = config.get("rope_parameters") or config.get("rope_scaling") or {}
    name = values.get("rope_type", values.get("type", "default"))
    try:
        kind = RopeType(name)
    except ValueError:
        supported = ", ".join(RopeType)
        raise ModelError(f"rope_type {name!r} is not supported; supported: {supported}") from None
    if config.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError("partial_rotary_factor: only 1.0 is supported")
    defaults = RopeConfig(head_dim, 0.0)
    return RopeConfig(
        dim=head_dim,
        theta=values.get("rope_theta", config.get("rope_theta", 10000.0)),
        type=kind,
        factor=values.get("factor", 1.0),
        original_max_positions=values.get(
            "original_max_position_embeddings", config["max_position_embeddings"]
        ),
        low_freq_factor=values.get("low_freq_factor", defaults.low_freq_factor),
        high_freq_factor=values.get("high_freq_factor", defaults.high_freq_factor),
        beta_fast=values.get("beta_fast") or defaults.beta_fast,
        beta_slow=values.get("beta_slow") or defaults.beta_slow,
        attention_factor=values.get("attention_factor"),
        mscale=values.get("mscale"),
        mscale_all_dim=values.get("mscale_all_dim"),
        truncate=values.get("truncate", True),
    )
