"""Plain torch kernels: obvious, slow, on any device. What the other implementations are checked against."""

from __future__ import annotations

import torch

from pageport.kernels.batch import RaggedBatch


class ReferenceKernels:
    """`Kernels` in plain torch, one sequence at a time, accumulating in float32."""

    name = "reference"

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
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        start = 0
        for index, (query_len, seq_len) in enumerate(
            zip(batch.query_lens_host, batch.seq_lens_host, strict=True)
        ):
            rows = slice(start, start + query_len)
            first = first_visible(seq_len - query_len, sliding_window)
            keys, values = _gather(kv_cache, batch.block_tables[index], first, seq_len)
            if kv_scales is not None:
                keys, values = keys * kv_scales[0, :, None], values * kv_scales[1, :, None]
            mask = causal_mask(query_len, first, seq_len, sliding_window, query.device)
            output[rows] = attend(query[rows], keys, values, mask, scale, soft_cap, sinks)
            start += query_len
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
        if cos_sin is not None:
            angles = cos_sin[batch.positions].unsqueeze(1)
            query.copy_(_rotate(query, angles))
            key = _rotate(key, angles)
        if kv_scales is not None:
            key, value = key.float() / kv_scales[0, :, None], value.float() / kv_scales[1, :, None]
        block_size = kv_cache.shape[2]
        blocks = batch.slot_mapping // block_size
        offsets = batch.slot_mapping % block_size
        kv_cache[blocks, 0, offsets] = key.to(kv_cache.dtype)
        kv_cache[blocks, 1, offsets] = value.to(kv_cache.dtype)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * inverse).to(x.dtype) * weight

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)

    def gelu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)

    def copy_blocks(self, kv_pool: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> None:
        kv_pool[target] = kv_pool[source]

    def gather_blocks(self, kv_pool: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        return kv_pool[blocks]

    def scatter_blocks(self, kv_pool: torch.Tensor, blocks: torch.Tensor, content: torch.Tensor) -> None:
        kv_pool[blocks] = content


def causal_mask(
    query_len: int, first: int, seq_len: int, sliding_window: int | None, device: torch.device
) -> torch.Tensor:
    """Which cached token each of a sequence's last `query_len` tokens sees.

    Args:
        first: the mask's columns are the tokens `first .. seq_len - 1`.

    Returns: bool [query_len, seq_len - first], True where visible.
    """
    own = torch.arange(seq_len - query_len, seq_len, device=device).unsqueeze(1)
    other = torch.arange(first, seq_len, device=device).unsqueeze(0)
    visible = other <= own
    if sliding_window is not None:
        visible &= other > own - sliding_window
    return visible


def first_visible(position: int, sliding_window: int | None) -> int:
    """The oldest token that the token at `position` sees."""
    return 0 if sliding_window is None else max(0, position - sliding_window + 1)


def _gather(
    kv_cache: torch.Tensor, block_table: torch.Tensor, first: int, seq_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy tokens `first .. seq_len - 1` out of their blocks: keys and values, float32 [tokens, Hkv, D]."""
    block_size = kv_cache.shape[2]
    token = torch.arange(first, seq_len, device=kv_cache.device)
    blocks = block_table[token // block_size].long()
    rows = kv_cache[blocks, :, token % block_size].float()
    return rows[:, 0], rows[:, 1]


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Masked softmax attention, query [Q, Hq, D] over keys and values [K, Hkv, D] -> float32 [Q, Hq, D]."""
    query_len, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    grouped = query.float().reshape(query_len, num_kv_heads, num_heads // num_kv_heads, head_dim)
    logits = torch.einsum("qhgd,khd->hgqk", grouped, keys) * scale
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    logits = logits.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        sink = sinks.float().reshape(num_kv_heads, -1, 1, 1).expand(*logits.shape[:3], 1)
        logits = torch.cat((logits, sink), dim=-1)
    weights = torch.softmax(logits, dim=-1)[..., : keys.shape[0]]
    return torch.einsum("hgqk,khd->qhgd", weights, values).reshape(query_len, num_heads, head_dim)


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (d, d + D/2) of [T, heads, D] by angles [T, 1, D]: cosines, then sines of D/2 each."""
    cos, sin = angles.chunk(2, dim=-1)
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)
