"""Weights and configuration from a GGUF file, dequantised tensor by tensor or as their blocks are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pageport.core.gguf_file import GgufFile
from pageport.core.model.embedding import Embedding
from pageport.core.model.gguf_blocks import read_blocks
from pageport.core.model.model_config import ModelConfig, parse_model_config
from pageport.core.model.stored_embedding import StoredEmbedding
from pageport.kernels.quantised import QuantisedWeight


class GgufSource:
    """A `WeightSource` over one file."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError: no readable GGUF file, or an architecture that is not supported."""
        self._file = GgufFile(path)

    def names(self) -> Iterable[str]:
        return self._file.tensor_names()

    def read(self, name: str) -> torch.Tensor:
        values = self._file.read(name)
        # A tensor stored in float32 is a read-only view of the mapped file.
        return torch.from_numpy(values if values.flags.writeable else np.array(values))

    # -- the file's own blocks, for computing with them --------------------------------------------------------

    def read_quantised(self, name: str) -> QuantisedWeight | None:
        """One tensor in groups of small integers; None where it is of another type."""
        data, kind = self._file.stored(name)
        weight = read_blocks(data, kind)
        order = self._file.row_order(name)
        if weight is None or order is None:
            return weight
        rows = torch.from_numpy(order)
        return replace(
            weight, codes=weight.codes[rows], scales=weight.scales[rows], minima=weight.minima[rows]
        )

    def embedding(self, name: str, dtype: torch.dtype) -> Embedding:
        """A tensor whose rows are looked up in the file."""
        return StoredEmbedding(*self._file.stored(name), dtype)


def read_gguf_config(path: Path) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelError."""
    return parse_model_config(GgufFile(path).hf_config())
