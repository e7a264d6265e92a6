"""Tokens to vectors, from a table that stays quantised in its file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, dequantize


class StoredEmbedding:
    """A quantised table that stays in its mapped file; only the rows asked for are dequantised.

    Args:
        rows: uint8 [vocab, bytes of a row].
    """

    def __init__(self, rows: npt.NDArray[np.uint8], kind: GGMLQuantizationType, dtype: torch.dtype) -> None:
        self._rows = rows
        self._kind = kind
        self._dtype = dtype

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(dequantize(self._rows[token_ids.numpy()], self._kind)).to(self._dtype)
