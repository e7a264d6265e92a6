"""Tokens to vectors."""

from __future__ import annotations

from typing import Protocol

import torch
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
