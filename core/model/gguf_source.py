"""Weights and configuration from a GGUF file, dequantised tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from pageport.core.gguf_file import GgufFile
from pageport.core.model.model_config import ModelConfig, parse_model_config


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


def read_gguf_config(path: Path) -> ModelConfig:
    """The configuration in a file's metadata. Raises ModelError."""
    return parse_model_config(GgufFile(path).hf_config())
