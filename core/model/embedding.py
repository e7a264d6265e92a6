"""Tokens to vectors."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType, dequantize
from torch.nn import functional


class Embedding(Protocol):
    """int64 [T] -> [T, hidden_size]."""

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor: ...


class TableEmbedding:
    """A table [vocab, hidden_size] in memory."""

    def __init__(self, table: torch.Tensor) -> None:
        self._table = table

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(token_ids, self._table)


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
