"""The operations that touch KV memory or run per layer: one signature, several implementations."""

from __future__ import annotations

from typing import Protocol

import torch

from pageport.kernels.batch import RaggedBatch


class Kernels(Protocol):
    """What a model's layers call. T: new tokens, Hq / Hkv: query / KV heads, D: head size.

    A layer's `kv_cache` is a strided view [num_blocks, 2, block_size, Hkv, D] of the block-major pool
    (dimension 1: keys, values). `kv_cache`, activations and weights share one dtype, float32, bfloat16 or
    float16; all implementations accumulate in float32. Where the cache is float8_e4m3fn, `kv_scales`, float32
    [2, Hkv], says what its keys and values are to be multiplied by.
    """

    name: str

    def chunk_alignment(self, dtype: torch.dtype, head_dim: int) -> int:
        """A prompt that is computed in pieces which start at multiples of so many tokens, and none of a single one,
        gives bitwise the results of the whole (without a soft cap); 1: no such promise."""

    def paged_attention(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: RaggedBatch,
        *,
        scale: float,
        sliding_window: int | None = None,
        soft_cap: float | None = None,
        kv_scales: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Causal attention of each new token over its own sequence, read where its blocks lie.

        Args:
            query: [T, Hq, D], may be strided in its first dimension.
            sliding_window: a token sees itself and the `sliding_window - 1` tokens before it.
            soft_cap: logits become `soft_cap * tanh(logits / soft_cap)`.
            sinks: float32 [Hq]; each head's softmax has one more logit, which takes weight and gives no value.

        Returns: [T, Hq, D], contiguous.
        """
        ...

    def rotary_and_write_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: RaggedBatch,
        cos_sin: torch.Tensor | None,
        kv_scales: torch.Tensor | None = None,
    ) -> None:
        """Rotate queries in place; write rotated keys, and values, to `batch.slot_mapping`.

        Args:
            query: [T, Hq, D]; key, value: [T, Hkv, D]; each may be strided in its first dimension.
            cos_sin: float32 [max_positions, D], cosines then sines of D/2 frequencies, indexed by
                `batch.positions` ("rotate half" convention of the Hugging Face Llama); None: no rotation.
        """
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """`x / sqrt(mean(x²) + eps) * weight` over the last dimension, computed in float32."""
        ...

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add `x` into `residual` in place, then RMS-normalise the sum: returns the normalised [T, H]."""
        ...

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 I] -> [T, I]: silu of the first half times the second half."""
        ...

    def gelu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As `silu_and_mul`, with gelu in its tanh approximation."""
        ...

    def copy_blocks(self, kv_pool: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy whole blocks of the pool [num_blocks, layers, 2, block_size, Hkv, D]: copy-on-write.

        Args:
            source, target: int64 [num_copies] on the pool's device; no block is both.
        """
        ...

    def gather_blocks(self, kv_pool: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """Whole blocks of the pool, in the order of `blocks` (int64 [n]), one after the other: swapping out."""
        ...

    def scatter_blocks(self, kv_pool: torch.Tensor, blocks: torch.Tensor, content: torch.Tensor) -> None:
        """Put gathered blocks back into the pool, at `blocks` (int64 [n], distinct): swapping in."""
        ...
