"""The green list: a share of the vocabulary, chosen by the token before, that a watermarked text prefers.

Method: Kirchenbauer et al., "A watermark for large language models" (ICML 2023), algorithm 2, with the hash key and the
permutation of TGI and of the authors' own code, so that their detectors find it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pageport.core.sampling.state import SamplingState

HASH_KEY = 15_485_863  # the millionth prime


def green_list(previous_token: int, vocab_size: int, gamma: float) -> torch.Tensor:
    """Token ids, int64 [int(gamma * vocab_size)], on the CPU. About half a millisecond for 49,152 tokens."""
    generator = torch.Generator().manual_seed(HASH_KEY * previous_token % 2**63)
    return torch.randperm(vocab_size, generator=generator)[: int(gamma * vocab_size)]


def apply_watermark(logits: torch.Tensor, rows: Sequence[int], states: Sequence[SamplingState]) -> None:
    """Add each row's delta to its green list, in place.

    Args:
        logits: float32 [R, V].
        rows: which rows; `states` are theirs.
    """
    for row, state in zip(rows, states, strict=True):
        watermark = state.params.watermark
        assert watermark is not None
        previous = (state.output_token_ids or state.prompt_token_ids)[-1]
        green = green_list(previous, logits.shape[1], watermark.gamma).to(logits.device)
        logits[row, green] += watermark.delta
