"""What tells equal prompt beginnings apart from others: a digest for each full block, chained to the one before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

_DIGEST_BYTES = 16


def block_digests(token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """One digest for each full block of `token_ids`; equal digests mean equal tokens from the beginning on.

    BLAKE2b of 128 bits over the digest before and the block's tokens: that two different prompts collide is less likely
    than that the memory errs.
    """
    tokens = np.asarray(token_ids, dtype=np.int64)
    digests: list[bytes] = []
    parent = b""
    for start in range(0, len(tokens) // block_size * block_size, block_size):
        content = parent + tokens[start : start + block_size].tobytes()
        parent = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
        digests.append(parent)
    return digests
