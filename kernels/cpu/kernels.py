"""The CPU's kernels put together."""

from __future__ import annotations

import torch

from pageport.kernels.batch import RaggedBatch
from pageport.kernels.cpu import rotary, row_ops
from pageport.kernels.cpu.chunk_attention import can_attend, chunk_attention
from pageport.kernels.cpu.decode_attention import DecodeAttention
from pageport.kernels.cpu.prefill_attention import QUERY_TILE, prefill_attention
from pageport.kernels.cpu.row_groups import ROWS
from pageport.kernels.cpu.scalars import ELEMENTS
from pageport.kernels.reference import ReferenceKernels


class CpuKernels:
    """`Kernels` for float32 and bfloat16 on the CPU; other types and layouts go to the reference.

    One instance serves one thread at a time: decode attention keeps scratch memory between calls.
    """

    name = "cpu"

    def __init__(self) -> None:
        self._reference = ReferenceKernels()
        self._decode = DecodeAttention()

    def chunk_alignment(self, dtype: torch.dtype, head_dim: int) -> int:
        return 2 if can_attend(dtype, head_dim) else QUERY_TILE

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
        plain = kv_scales is None and sinks is None
        if not (plain and _is_dense_in_rows(query) and kv_cache.shape[-1] % ROWS == 0):
            return self._reference.paged_attention(
                query, kv_cache, batch, scale=scale, sliding_window=sliding_window, soft_cap=soft_cap,
                kv_scales=kv_scales, sinks=sinks,
            )  # fmt: skip
        output = torch.empty(query.shape, dtype=query.dtype)
        decodes = batch.num_decodes
        if decodes:
            self._decode.run(query, kv_cache, batch, output, scale, sliding_window, soft_cap)
        if decodes == len(batch.query_lens_host):
            return output
        if soft_cap is None and can_attend(query.dtype, query.shape[2]):
            chunk_attention(query, kv_cache, batch, output, scale, sliding_window)
            return output
        start = decodes
        for index in range(decodes, len(batch.query_lens_host)):
            stop = start + batch.query_lens_host[index]
            prefill_attention(
                query[start:stop],
                kv_cache,
                batch.block_tables[index],
                batch.seq_lens_host[index],
                output[start:stop],
                scale=scale,
                sliding_window=sliding_window,
                soft_cap=soft_cap,
            )
            start = stop
        return output

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
        if kv_scales is None and all(_is_dense_in_rows(x) for x in (query, key, value)):
            rotary.rotary_and_write_kv(query, key, value, kv_cache, batch, cos_sin)
        else:
            self._reference.rotary_and_write_kv(query, key, value, kv_cache, batch, cos_sin, kv_scales)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dtype in ELEMENTS:
            return row_ops.rms_norm(x.contiguous(), None, weight, eps)
        return self._reference.rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        if x.dtype in ELEMENTS and residual.is_contiguous():
            return row_ops.rms_norm(x.contiguous(), residual, weight, eps)
        return self._reference.add_rms_norm(x, residual, weight, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        if gate_up.dtype in ELEMENTS:
            return row_ops.silu_and_mul(gate_up.contiguous())
        return self._reference.silu_and_mul(gate_up)

    def gelu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return self._reference.gelu_and_mul(gate_up)

    def copy_blocks(self, kv_pool: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
        kv_pool.index_copy_(0, target, kv_pool.index_select(0, source))

    def gather_blocks(self, kv_pool: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        return kv_pool.index_select(0, blocks)

    def scatter_blocks(self, kv_pool: torch.Tensor, blocks: torch.Tensor, content: torch.Tensor) -> None:
        kv_pool.index_copy_(0, blocks, content)


def _is_dense_in_rows(x: torch.Tensor) -> bool:
    """Whether [T, heads, D] is of a type that is compiled for, and strided in its first dimension only."""
    return x.dtype in ELEMENTS and x.stride()[1:] == (x.shape[2], 1)
