"""The decoder of the Llama family over a ragged batch: tokens of all sequences laid end to end, no padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pageport.core.model.embedding import Embedding
from pageport.core.model.linear import Linear
from pageport.core.model.model_config import LayerConfig, ModelConfig
from pageport.core.model.rope import cos_sin_table
from pageport.kernels import Kernels, RaggedBatch


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Queries, keys and values are one product, as are gate and up.

    q_norm, k_norm: [head_dim], for models that normalise queries and keys (qwen3).
    """

    input_norm: torch.Tensor
    qkv: Linear
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """head: the vocabulary projection, the embedding's own weights where they are tied."""

    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    head: Linear


class LlamaForCausalLM:
    """llama, mistral, qwen2, qwen3 and smollm3: they differ only in what `ModelConfig` says.

    Plain calls instead of torch modules: 30 layers of small products are a fraction of a millisecond each, and a
    module's call overhead would show.
    """

    def __init__(
        self, config: ModelConfig, weights: ModelWeights, kernels: Kernels, device: torch.device
    ) -> None:
        self.config = config
        self._weights = weights
        self._kernels = kernels
        self._cos_sin = cos_sin_table(config.rope, config.max_position_embeddings, device)
        self._scale = config.head_dim**-0.5
        self._q_size = config.num_heads * config.head_dim
        self._kv_size = config.num_kv_heads * config.head_dim

    @torch.inference_mode()
    def forward(
        self, input_ids: torch.Tensor, kv_caches: list[torch.Tensor], batch: RaggedBatch
    ) -> torch.Tensor:
        """Hidden states after the last norm, with the tokens' keys and values written to the cache.

        Args:
            input_ids: int64 [T].
            kv_caches: each layer's view [num_blocks, 2, block_size, Hkv, D].

        Returns: [T, hidden_size].
        """
        kernels, eps = self._kernels, self.config.rms_norm_eps
        residual = self._weights.embedding(input_ids)
        layers = zip(self._weights.layers, self.config.layers, kv_caches, strict=True)
        update: torch.Tensor | None = None
        for weights, layer, kv_cache in layers:
            if update is None:
                x = kernels.rms_norm(residual, weights.input_norm, eps)
            else:
                x = kernels.add_rms_norm(update, residual, weights.input_norm, eps)
            attended = self._attention(x, weights, layer, kv_cache, batch)
            x = kernels.add_rms_norm(attended, residual, weights.post_attention_norm, eps)
            update = weights.down(kernels.silu_and_mul(weights.gate_up(x)))
        assert update is not None
        return kernels.add_rms_norm(update, residual, self._weights.norm, eps)

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[R, hidden_size] -> float32 [R, vocab_size]."""
        return self._weights.head.wide(hidden)

    def _attention(
        self,
        x: torch.Tensor,
        weights: LayerWeights,
        layer: LayerConfig,
        kv_cache: torch.Tensor,
        batch: RaggedBatch,
    ) -> torch.Tensor:
        config, kernels = self.config, self._kernels
        tokens = x.shape[0]
        q, k, v = torch.split(weights.qkv(x), [self._q_size, self._kv_size, self._kv_size], dim=-1)
        query = q.view(tokens, config.num_heads, config.head_dim)
        key = k.view(tokens, config.num_kv_heads, config.head_dim)
        value = v.view(tokens, config.num_kv_heads, config.head_dim)
        if weights.q_norm is not None and weights.k_norm is not None:
            query = kernels.rms_norm(query.contiguous(), weights.q_norm, config.rms_norm_eps)
            key = kernels.rms_norm(key.contiguous(), weights.k_norm, config.rms_norm_eps)
        cos_sin = self._cos_sin if layer.rotary else None
        kernels.rotary_and_write_kv(query, key, value, kv_cache, batch, cos_sin)
        attended = kernels.paged_attention(
            query, kv_cache, batch, scale=self._scale, sliding_window=layer.sliding_window
        )
        return weights.output(attended.view(tokens, self._q_size))
