"""The table against transformers' own rotary embeddings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pageport.core.errors import ModelError
from pageport.core.model.rope import cos_sin_table
from pageport.core.model.rope_config import parse_rope

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn_beta": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0,
                  "original_max_position_embeddings": 64},
    "yarn_untruncated": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "truncate": False,
                         "original_max_position_embeddings": 64},
    "yarn_attention": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "attention_factor": 1.5,
                       "original_max_position_embeddings": 64},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_equals_transformers(variant: str, head_dim: int) -> None:
    parameters = VARIANTS[variant]
    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim, max_position_embeddings=256,
        rope_parameters=parameters,
    )  # fmt: skip
    positions = torch.arange(256)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 1), positions[None])
    ours = cos_sin_table(parse_rope(config.to_dict(), head_dim), 256, torch.device("cpu"))
    half = head_dim // 2
    torch.testing.assert_close(ours, torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=-1))


def test_both_spellings_mean_the_same() -> None:
    new = {"max_position_embeddings": 256, "rope_parameters": VARIANTS["llama3"]}
    scaling = {
        key: value for key, value in VARIANTS["llama3"].items() if key not in ("rope_type", "rope_theta")
    }
    old = {"max_position_embeddings": 256, "rope_theta": 5e5, "rope_scaling": {"type": "llama3", **scaling}}
    assert parse_rope(new, 64) == parse_rope(old, 64)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_refuses_what_it_would_compute_wrongly(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_rope({"max_position_embeddings": 256, **config}, 64)
