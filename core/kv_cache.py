"""The KV tensors: one block-major pool, sized to the machine, seen by each layer through a strided view."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from pageport.core.errors import ConfigError
from pageport.core.model.model_config import ModelConfig

if TYPE_CHECKING:
    from pageport.core.config import EngineConfig


class KVCacheSize(NamedTuple):
    """How many blocks there are, what one weighs, and the longest sequence that they allow."""

    num_blocks: int
    bytes_per_block: int
    max_model_len: int

    @property
    def total_bytes(self) -> int:
        return self.num_blocks * self.bytes_per_block


def size_kv_cache(
    config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device
) -> KVCacheSize:
    """Turn `kv_cache_memory_bytes` or `gpu_memory_utilization` into a number of blocks.

    Call it once the weights are loaded: a share is taken of what is free then. Never more blocks than all
    `max_num_seqs` sequences could fill.

    Raises:
        ConfigError: more bytes than are free, less than one block, or too few for `max_model_len`.
    """
    bytes_per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize
    bytes_per_block = bytes_per_token * config.block_size
    free = _free_bytes(device)
    if config.kv_cache_memory_bytes is None:
        budget, source = int(free * config.gpu_memory_utilization), "gpu_memory_utilization"
    else:
        budget, source = config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
        if budget > free:
            raise ConfigError(f"kv_cache_memory_bytes: {budget} is more than the {free} bytes that are free")
    context = config.max_model_len or model.max_position_embeddings
    if context > model.max_position_embeddings:
        raise ConfigError(
            f"max_model_len: {context} is more than the model's {model.max_position_embeddings} positions"
        )
    most_useful = config.max_num_seqs * -(-context // config.block_size)
    num_blocks = min(budget // bytes_per_block, most_useful)
    if num_blocks < 1:
        raise ConfigError(f"{source}: {budget} bytes do not hold one block of {bytes_per_block} bytes")
    capacity = num_blocks * config.block_size
    if config.max_model_len is not None and capacity < config.max_model_len:
        raise ConfigError(
            f"max_model_len: {config.max_model_len} tokens do not fit into {num_blocks} blocks of "
            f"{config.block_size} ({source}: {budget} bytes); lower it or give more memory"
        )
    return KVCacheSize(num_blocks, bytes_per_block, min(context, capacity))


def allocate_kv_pool(
    num_blocks: int, block_size: int, model: ModelConfig, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The pool [num_blocks, layers, 2, block_size, kv_heads, head_dim].

    Block-major, so that moving a block (copy-on-write, swap) is one copy. Not zeroed: on the CPU, pages that no
    block ever touches then cost no memory, and kernels never let an unwritten slot reach a result.
    """
    shape = (num_blocks, model.num_layers, 2, block_size, model.num_kv_heads, model.head_dim)
    return torch.empty(shape, dtype=dtype, device=device)


def layer_views(pool: torch.Tensor) -> list[torch.Tensor]:
    """Each layer's [num_blocks, 2, block_size, kv_heads, head_dim], sharing the pool's memory."""
    return list(pool.unbind(dim=1))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil  # a decode on a GPU can do without

    return int(psutil.virtual_memory().available)
