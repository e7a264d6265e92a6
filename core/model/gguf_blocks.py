"""GGUF's blocks of 32 weights taken apart: codes, scales and minima, without turning them into floats."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType

from pageport.kernels.quantised import GROUP, QuantisedWeight

_HALF_BYTES = 2


def read_blocks(data: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> QuantisedWeight | None:
    """The rows of a tensor of type Q4_0, Q4_1 or Q8_0; None for all others.

    A block is a float16 scale, in Q4_1 a float16 minimum, then 32 codes: bytes, or nibbles, the low ones of 16 bytes
    first.

    Args:
        data: uint8 [rows, bytes of a row].
    """
    has_minimum = kind == GGMLQuantizationType.Q4_1
    bits = 8 if kind == GGMLQuantizationType.Q8_0 else 4
    if kind not in (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0):
        return None
    head = _HALF_BYTES * (1 + has_minimum)
    blocks = data.reshape(data.shape[0], -1, head + GROUP * bits // 8)
    scales = _halves(blocks[..., :_HALF_BYTES])
    packed = blocks[..., head:]
    if bits == 8:
        return QuantisedWeight(8, _flat(packed.view(np.int8)), scales, torch.zeros_like(scales))
    codes = _flat(np.concatenate([packed & 15, packed >> 4], axis=-1).view(np.int8))
    # Q4_0's codes stand for -8 to 7; eight times a float16 is one too, but for huge ones.
    minima = _halves(blocks[..., _HALF_BYTES:head]) if has_minimum else scales * -8
    return QuantisedWeight(4, codes, scales, minima)


def _halves(data: npt.NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(data).view(np.float16)[..., 0].copy())


def _flat(codes: npt.NDArray[np.int8]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(codes).reshape(codes.shape[0], -1))
