"""The distinct tokens of one sequence and how often each occurred; grows with the sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class TokenHistory:
    """Counts kept up to date at a cost of the new tokens only.

    Args:
        prompt_token_ids: these count as seen.
        count_prompt: whether their occurrences count as well; else only those in the output.
    """

    def __init__(self, prompt_token_ids: Sequence[int], *, count_prompt: bool = False) -> None:
        distinct, occurrences = np.unique(np.asarray(prompt_token_ids, dtype=np.int64), return_counts=True)
        self._size = len(distinct)
        self._token_ids = np.empty(max(64, 2 * self._size), dtype=np.int64)
        self._token_ids[: self._size] = distinct
        self._counts = np.zeros(len(self._token_ids), dtype=np.float32)
        if count_prompt:
            self._counts[: self._size] = occurrences
        self._slots = {token: slot for slot, token in enumerate(distinct.tolist())}
        self._num_counted = 0

    @property
    def token_ids(self) -> npt.NDArray[np.int64]:
        """[n], the distinct tokens of prompt and output."""
        return self._token_ids[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """[n], how often each of `token_ids` occurs where it counts; float32, as logits are."""
        return self._counts[: self._size]

    def update(self, output_token_ids: Sequence[int]) -> None:
        """Count the tokens that were appended to the output since the last call."""
        for token in output_token_ids[self._num_counted :]:
            slot = self._slots.get(token)
            if slot is None:
                slot = self._append(token)
            self._counts[slot] += 1
        self._num_counted = len(output_token_ids)

    def _append(self, token: int) -> int:
        slot = self._size
        if slot == len(self._token_ids):
            self._token_ids = np.concatenate([self._token_ids, np.empty_like(self._token_ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._token_ids[slot] = token
        self._slots[token] = slot
        self._size += 1
        return slot
