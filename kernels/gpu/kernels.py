"""`Kernels` on a GPU: checks shapes, picks the tiles, launches."""

from __future__ import annotations

import math

import torch
import triton

from pageport.kernels.batch import RaggedBatch
from pageport.kernels.gpu.attention import attend_chunks, attend_splits, reduce_splits
from pageport.kernels.gpu.blocks import move_blocks
from pageport.kernels.gpu.rows import gate_rows, rms_norm_rows, rotate_and_write
from pageport.kernels.gpu.shapes import SPLIT, chunk_shape, decode_shape, power_of_two

_LOG2_E = math.log2(math.e)
_BLOCK_CHUNK = 1024
_GATE_COLUMNS = 1024


class GpuKernels:
    """See `Kernels`. No call waits for the device."""

    name = "gpu"
    # A row's tiles start at multiples of the tile size in its own context, however its prompt is cut.

    def chunk_alignment(self, dtype: torch.dtype, head_dim: int) -> int:
        return 1

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
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        options = _AttentionOptions(query, kv_cache, scale, sliding_window, soft_cap, kv_scales, sinks)
        decodes, sequences = batch.num_decodes, len(batch.seq_lens_host)
        if decodes:
            _attend_decodes(out, query, kv_cache, batch, options)
        if decodes < sequences:
            _attend_chunks(out, query, kv_cache, batch, options)
        return out

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
        tokens, heads, dim = query.shape
        kv_heads = key.shape[1]
        rotate_and_write[(tokens,)](
            query, key, value, kv_cache, batch.positions, batch.slot_mapping,
            query if cos_sin is None else cos_sin, query if kv_scales is None else kv_scales,
            query.stride(0), key.stride(0), value.stride(0),
            kv_cache.stride(0), kv_cache.stride(1), kv_cache.stride(2), kv_cache.stride(3),
            BLOCK_SIZE=kv_cache.shape[2],
            HEADS=heads, HEADS_PADDED=power_of_two(heads),
            KV_HEADS=kv_heads, KV_HEADS_PADDED=power_of_two(kv_heads),
            HALF=dim // 2, HALF_PADDED=power_of_two(dim // 2),
            ROTATE=cos_sin is not None, HAS_SCALES=kv_scales is not None,
        )  # fmt: skip

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return _rms_norm(x, None, weight, eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        return _rms_norm(x, residual, weight, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return _gate(gate_up, gelu=False)

    def gelu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        return _gate(gate_up, gelu=True)

    def copy_blocks(self, kv_pool: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
        _move(kv_pool, kv_pool, target, source)

    def gather_blocks(self, kv_pool: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        gathered = kv_pool.new_empty((len(blocks), *kv_pool.shape[1:]))
        _move(gathered, kv_pool, None, blocks)
        return gathered

    def scatter_blocks(self, kv_pool: torch.Tensor, blocks: torch.Tensor, content: torch.Tensor) -> None:
        _move(kv_pool, content, blocks, None)


class _AttentionOptions:
    """The arguments that both attention kernels share, in Triton's terms."""

    def __init__(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        scale: float,
        sliding_window: int | None,
        soft_cap: float | None,
        kv_scales: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> None:
        self.heads, self.head_dim = query.shape[1:]
        self.kv_heads = kv_cache.shape[3]
        self.group = self.heads // self.kv_heads
        self.window = sliding_window or 0
        self.soft_cap = (soft_cap or 0.0) * _LOG2_E
        self.scale = scale * _LOG2_E
        self.scales = query if kv_scales is None else kv_scales
        self.sinks = query if sinks is None else sinks
        self.kv_strides = kv_cache.stride()[:4]
        self.has_sinks = sinks is not None
        self.flags = {
            "BLOCK_SIZE": kv_cache.shape[2],
            "HEAD_DIM": self.head_dim,
            "DIM": max(16, power_of_two(self.head_dim)),
            "HAS_CAP": soft_cap is not None,
            "HAS_WINDOW": sliding_window is not None,
            "HAS_SCALES": kv_scales is not None,
            "PRECISION": "ieee",
            "WIDE_DOT": triton.knobs.runtime.interpret,
        }


def _attend_chunks(
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    batch: RaggedBatch,
    options: _AttentionOptions,
) -> None:
    shape = chunk_shape(options.head_dim, options.group, query.dtype)
    tokens = shape.rows // options.group
    sequences = len(batch.seq_lens_host) - batch.num_decodes
    tiles = (query.shape[0] - batch.num_decodes) // tokens + sequences
    attend_chunks[(tiles, options.kv_heads)](
        out, query, kv_cache, batch.block_tables, batch.query_start_loc, batch.seq_lens,
        options.scales, options.sinks, options.scale, options.soft_cap, options.window,
        batch.num_decodes, sequences,
        query.stride(0), out.stride(0), *options.kv_strides, batch.block_tables.stride(0),
        GROUP=options.group, ROWS=shape.rows, TILE=shape.tile, HAS_SINKS=options.has_sinks, **options.flags,
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip


def _attend_decodes(
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    batch: RaggedBatch,
    options: _AttentionOptions,
) -> None:
    shape = decode_shape(options.head_dim, options.group, query.dtype)
    decodes = batch.num_decodes
    splits = triton.cdiv(max(batch.seq_lens_host[:decodes]), SPLIT)
    total = torch.empty(
        (decodes, options.heads, splits, options.head_dim), dtype=torch.float32, device=query.device
    )
    row_max, row_sum = torch.empty(
        (2, decodes, options.heads, splits), dtype=torch.float32, device=query.device
    )
    attend_splits[(decodes, options.kv_heads, splits)](
        total, row_max, row_sum, query, kv_cache, batch.block_tables, batch.seq_lens,
        options.scales, options.scale, options.soft_cap, options.window,
        query.stride(0), *options.kv_strides, batch.block_tables.stride(0),
        GROUP=options.group, ROWS=shape.rows, SPLIT=SPLIT, TILE=shape.tile, **options.flags,
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    reduce_splits[(decodes, options.heads)](
        out, total, row_max, row_sum, batch.seq_lens, options.sinks, options.window, splits, out.stride(0),
        SPLIT=SPLIT, HEAD_DIM=options.head_dim, DIM=power_of_two(options.head_dim),
        HAS_WINDOW=options.flags["HAS_WINDOW"], HAS_SINKS=options.has_sinks,
    )  # fmt: skip


def _rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    width = x.shape[-1]
    rows = x.reshape(-1, width)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_rows[(rows.shape[0],)](
        out, rows, rows if residual is None else residual, weight, eps, rows.stride(0),
        WIDTH=width, COLUMNS=power_of_two(width), ADD=residual is not None,
        num_warps=4 if width <= 4096 else 8,
    )  # fmt: skip
    return out


def _gate(gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    gate_rows[(tokens, triton.cdiv(width, _GATE_COLUMNS))](
        out, gate_up, gate_up.stride(0), WIDTH=width, COLUMNS=_GATE_COLUMNS, GELU=gelu
    )
    return out


def _move(
    target: torch.Tensor,
    source: torch.Tensor,
    target_ids: torch.Tensor | None,
    source_ids: torch.Tensor | None,
) -> None:
    ids = source_ids if source_ids is not None else target_ids
    assert ids is not None
    size = source[0].numel()
    move_blocks[(len(ids), triton.cdiv(size, _BLOCK_CHUNK))](
        target, source, ids if target_ids is None else target_ids, ids if source_ids is None else source_ids,
        SIZE=size, CHUNK=_BLOCK_CHUNK, GATHER=source_ids is not None, SCATTER=target_ids is not None,
    )  # fmt: skip
