"""Weights in groups of 32 small integers that share a scale and a minimum, as GGUF's Q4 and Q8 blocks are."""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 32


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """weight[n, k] = scales[n, k // 32] * codes[n, k] + minima[n, k // 32].

    Attributes:
        bits: 4 (codes 0 to 15) or 8 (codes -128 to 127).
        codes: int8 [N, K], K a multiple of 32.
        scales, minima: float16 [N, K // 32].
    """

    bits: int
    codes: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        rows, width = self.codes.shape
        return rows, width

    def dequantise(self) -> torch.Tensor:
        """float32 [N, K]."""
        rows, width = self.shape
        groups = self.codes.float().view(rows, -1, GROUP)
        return (groups * self.scales.float()[..., None] + self.minima.float()[..., None]).view(rows, width)


def concatenate(weights: list[torch.Tensor | QuantisedWeight]) -> torch.Tensor | QuantisedWeight | None:
    """One below the other; None where some are quantised and some not, or with different numbers of bits."""
    dense = [weight for weight in weights if isinstance(weight, torch.Tensor)]
    quantised = [weight for weight in weights if isinstance(weight, QuantisedWeight)]
    if not quantised:
        return torch.cat(dense)
    if dense or len({weight.bits for weight in quantised}) > 1:
        return None
    return QuantisedWeight(
        quantised[0].bits,
        torch.cat([weight.codes for weight in quantised]),
        torch.cat([weight.scales for weight in quantised]),
        torch.cat([weight.minima for weight in quantised]),
    )
