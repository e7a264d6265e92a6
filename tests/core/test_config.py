from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from pageport.core.config import EngineConfig, KernelBackend, parse_engine_config
from pageport.core.errors import ConfigError
from pageport.core.kv_cache import allocate_kv_pool, layer_views, size_kv_cache
from pageport.core.model.model_config import ModelConfig, parse_model_config

CPU = torch.device("cpu")
TOKEN_BYTES = 2 * 3 * 2 * 8 * 4  # keys and values, 3 layers, 2 heads of 8 float32


def model(**changes: Any) -> ModelConfig:
    return parse_model_config(
        {
            "model_type": "llama", "vocab_size": 32, "hidden_size": 32, "intermediate_size": 8,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 128, **changes,
        }
    )  # fmt: skip


def test_text_values_become_typed_ones() -> None:
    config = parse_engine_config({"model": "m", "block_size": "32", "gpu_memory_utilization": "0.5"})
    assert config == EngineConfig(model=Path("m"), block_size=32, gpu_memory_utilization=0.5)
    assert config.kernel_backend is KernelBackend.AUTO


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "m", "block_size": 0}, r"block_size: .* greater than or equal to 1 \(given: 0\)"),
        ({"model": "m", "dtype": "int8"}, r"dtype: .*'float32'.* \(given: 'int8'\)"),
        ({"model": "m", "blok_size": 8}, "blok_size: Unexpected keyword"),
        ({}, "model: Field required|model"),
        ({"model": "m", "max_num_seqs": "many"}, r"max_num_seqs: .* integer.*\(given: 'many'\)"),
    ],
)
def test_names_the_argument_the_limit_and_the_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_engine_config(values)


def size(model_config: ModelConfig, **arguments: Any) -> Any:
    config = parse_engine_config({"model": "m", **arguments})
    return size_kv_cache(config, model_config, torch.float32, CPU)


def test_blocks_are_the_bytes_over_the_bytes_of_a_block() -> None:
    result = size(model(), kv_cache_memory_bytes=20 * 16 * TOKEN_BYTES + 5)
    assert (result.num_blocks, result.bytes_per_block) == (20, 16 * TOKEN_BYTES)
    assert result.total_bytes == 20 * 16 * TOKEN_BYTES
    assert result.max_model_len == 128


def test_a_small_cache_shortens_the_context_unless_it_was_asked_for() -> None:
    assert size(model(), kv_cache_memory_bytes=5 * 16 * TOKEN_BYTES).max_model_len == 80
    with pytest.raises(ConfigError, match="max_model_len: 100 tokens do not fit into 5 blocks of 16"):
        size(model(), kv_cache_memory_bytes=5 * 16 * TOKEN_BYTES, max_model_len=100)


def test_never_more_blocks_than_all_sequences_could_fill() -> None:
    assert size(model(), max_num_seqs=3).num_blocks == 3 * 8
    assert size(model(), max_num_seqs=3, max_model_len=20).num_blocks == 3 * 2


def test_a_share_is_taken_of_free_memory() -> None:
    # Sequences long enough that the share decides, not what they could fill.
    result = size(model(max_position_embeddings=1 << 30), gpu_memory_utilization=0.25)
    free = psutil.virtual_memory().available
    assert result.total_bytes == pytest.approx(0.25 * free, rel=0.1)


def test_never_more_than_the_machine_has() -> None:
    with pytest.raises(
        ConfigError, match=r"kv_cache_memory_bytes: \d+ is more than the \d+ bytes that are free"
    ):
        size(model(), kv_cache_memory_bytes=psutil.virtual_memory().total + 1)


def test_pool_is_block_major_and_layers_see_it() -> None:
    result = size(model(), kv_cache_memory_bytes=20 * 16 * TOKEN_BYTES)
    pool = allocate_kv_pool(result.num_blocks, 16, model(), torch.float32, CPU)
    assert pool.shape == (20, 3, 2, 16, 2, 8) and pool.is_contiguous()
    views = layer_views(pool)
    assert [view.shape for view in views] == [(20, 2, 16, 2, 8)] * 3
    views[1].fill_(7.0)
    assert bool((pool[:, 1] == 7.0).all())
