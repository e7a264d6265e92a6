"""Counter-based random numbers: a draw is a pure function of seed and position, and has no state."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = tuple[npt.NDArray[np.uint64], ...]

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10


def philox_4x32(counter: Words, key: Words) -> Words:
    """Philox4x32-10 of Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

    Args:
        counter: four uint64 arrays [N] of 32-bit words.
        key: two such arrays.

    Returns: four uint64 arrays [N] of 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0 = _MULTIPLIERS[0] * c0
        p1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0 = (k0 + _KEY_STEPS[0]) & _LOW
        k1 = (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(seeds: npt.NDArray[np.uint64], indices: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits for each pair of seed and output index; all [N]."""
    zero = np.zeros_like(seeds)
    words = philox_4x32(
        (indices & _LOW, indices >> _32, zero, zero),
        (seeds & _LOW, seeds >> _32),
    )
    bits = ((words[0] << _32) | words[1]) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53
