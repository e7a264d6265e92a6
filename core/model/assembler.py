"""From named tensors to a decoder that is ready to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pageport.core.errors import ModelError
from pageport.core.model.embedding import Embedding, TableEmbedding
from pageport.core.model.linear import Linear
from pageport.core.model.llama import LayerWeights, LlamaForCausalLM, ModelWeights
from pageport.core.model.model_config import ModelConfig
from pageport.core.model.weight_source import WeightSource
from pageport.kernels import Kernels
from pageport.kernels.quantised import QuantisedWeight, concatenate

if TYPE_CHECKING:
    from pageport.core.model.gguf_source import GgufSource


def assemble_model(
    config: ModelConfig,
    source: WeightSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    kernels: Kernels,
    blocks: GgufSource | None = None,
) -> LlamaForCausalLM:
    """Read the tensors that the configuration calls for, converted to `dtype`, one at a time.

    Args:
        blocks: where 4- and 8-bit weights are read from as they are; None: all become `dtype`.

    Raises:
        ModelError: a tensor is missing, unexpected or of the wrong shape.
    """
    weights = _Assembler(config, source, dtype, device, blocks).model()
    return LlamaForCausalLM(config, weights, kernels, device)


class _Assembler:
    """Reads each tensor that the configuration calls for, checks its shape, and sees that none is left over."""

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        blocks: GgufSource | None,
    ) -> None:
        self._config = config
        self._source = source
        self._blocks = blocks
        self._dtype = dtype
        self._device = device
        self._unread = set(source.names())

    def model(self) -> ModelWeights:
        config = self._config
        table = self._matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        layers = tuple(self._layer(f"model.layers.{index}") for index in range(config.num_layers))
        norm = self._read("model.norm.weight", config.hidden_size)
        if config.tie_word_embeddings:
            self._unread.discard("lm_head.weight")  # some files hold the same matrix twice
            head = table
        else:
            head = self._matrix("lm_head.weight", config.vocab_size, config.hidden_size)
        leftover = {name for name in self._unread if not name.endswith("rotary_emb.inv_freq")}
        if leftover:
            raise ModelError(
                f"unexpected tensors: {', '.join(sorted(leftover)[:5])} ({len(leftover)} in all)"
            )
        return ModelWeights(self._embedding(table), layers, norm, Linear(head))

    def _embedding(self, table: torch.Tensor | QuantisedWeight) -> Embedding:
        if isinstance(table, torch.Tensor):
            return TableEmbedding(table)
        assert self._blocks is not None
        return self._blocks.embedding("model.embed_tokens.weight", self._dtype)

    def _layer(self, prefix: str) -> LayerWeights:
        config = self._config
        hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        q_size, kv_size = config.num_heads * head_dim, config.num_kv_heads * head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = [
            (f"{attention}.q_proj", q_size),
            (f"{attention}.k_proj", kv_size),
            (f"{attention}.v_proj", kv_size),
        ]
        return LayerWeights(
            input_norm=self._read(f"{prefix}.input_layernorm.weight", hidden),
            qkv=self._merged(qkv, hidden, bias=config.qkv_bias),
            output=self._merged([(f"{attention}.o_proj", hidden)], q_size, bias=config.output_bias),
            post_attention_norm=self._read(f"{prefix}.post_attention_layernorm.weight", hidden),
            gate_up=self._merged(
                [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)], hidden, bias=config.mlp_bias
            ),
            down=self._merged([(f"{mlp}.down_proj", hidden)], inner, bias=config.mlp_bias),
            q_norm=self._read(f"{attention}.q_norm.weight", head_dim) if config.qk_norm else None,
            k_norm=self._read(f"{attention}.k_norm.weight", head_dim) if config.qk_norm else None,
        )

    def _merged(self, parts: list[tuple[str, int]], in_features: int, *, bias: bool) -> Linear:
        """Several projections of the same input as one."""
        weights = [self._matrix(f"{name}.weight", rows, in_features) for name, rows in parts]
        weight = concatenate(weights)
        if weight is None:  # of several kinds
            dense = [w if isinstance(w, torch.Tensor) else w.dequantise().to(self._dtype) for w in weights]
            weight = torch.cat(dense)
        offsets = torch.cat([self._read(f"{name}.bias", rows) for name, rows in parts]) if bias else None
        return Linear(weight, offsets)

    def _matrix(self, name: str, *shape: int) -> torch.Tensor | QuantisedWeight:
        """As `_read`, or quantised where that is wanted and the file has it so."""
        if self._blocks is None or name not in self._unread:
            return self._read(name, *shape)
        weight = self._blocks.read_quantised(name)
        if weight is None:
            return self._read(name, *shape)
        self._take(name, weight.shape, shape)
        return weight

    def _read(self, name: str, *shape: int) -> torch.Tensor:
        if name not in self._unread:
            raise ModelError(f"the weights have no tensor {name}")
        tensor = self._source.read(name)
        self._take(name, tuple(tensor.shape), shape)
        return tensor.to(device=self._device, dtype=self._dtype)

    def _take(self, name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        self._unread.remove(name)
        if shape != wanted:
            raise ModelError(f"tensor {name} has shape {shape}, the configuration wants {wanted}")
