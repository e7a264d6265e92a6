"""Do both sides give the same answers? Token for token, and where they part, by how much."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Judge(Protocol):
    """Something that can say which logits the reference model gives after a context."""

    def logits(self, context: Sequence[int]) -> Sequence[float]: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two greedy answers to one prompt first differ.

    Attributes:
        dtype: what both sides computed in.
        request: index of the prompt.
        position: index of the token in the answer, from 0.
        before_token, after_token: the two choices; None: that answer had ended.
        logits: by what computed them ("bfloat16", "float32"), the logits of the two choices.
    """

    dtype: str
    request: int
    position: int
    before_token: int | None
    after_token: int | None
    logits: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parity:
    """Of one data type.

    Attributes:
        compared, equal: answers; those that are the same from the first token to the last.
        tokens_compared, tokens_equal: tokens of the answers; those before the first difference.
    """

    dtype: str
    compared: int
    equal: int
    tokens_compared: int
    tokens_equal: int
    first_differences: list[Difference]


def first_difference(before: Sequence[int], after: Sequence[int]) -> int | None:
    """Index of the first token that is not the same; None: the answers are equal."""
    for position, (left, right) in enumerate(zip(before, after, strict=False)):
        if left != right:
            return position
    return None if len(before) == len(after) else min(len(before), len(after))


def compare(dtype: str, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> Parity:
    """Compare answers pairwise; the logits of differences are left open."""
    differences = []
    tokens_equal = 0
    for index, (left, right) in enumerate(zip(before, after, strict=True)):
        position = first_difference(left, right)
        if position is None:
            tokens_equal += len(left)
            continue
        tokens_equal += position
        differences.append(Difference(dtype, index, position, _at(left, position), _at(right, position)))
    return Parity(
        dtype=dtype,
        compared=len(before),
        equal=len(before) - len(differences),
        tokens_compared=sum(len(answer) for answer in before),
        tokens_equal=tokens_equal,
        first_differences=differences,
    )


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def judge_difference(
    difference: Difference,
    prompt: Sequence[int],
    before: Sequence[int],
    judges: Mapping[str, Judge],
) -> Difference:
    """Add both candidates' logits, as each judge gives them after the part that both answers share."""
    left, right = difference.before_token, difference.after_token
    if left is None or right is None:
        return difference
    context = [*prompt, *before[: difference.position]]
    logits = {}
    for name, judge in judges.items():
        row = judge.logits(context)
        logits[name] = (float(row[left]), float(row[right]))
    return dataclasses.replace(difference, logits=logits)


class TransformersJudge:
    """The reference model, run in this process: one forward pass over the whole context, no cache.

    Args:
        folder: a Hugging Face model folder.
        dtype: a torch name, such as "float32".
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # it would tear our own lines apart
        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def logits(self, context: Sequence[int]) -> list[float]:
        with self._torch.inference_mode():
            output = self._model(self._torch.tensor([list(context)]), logits_to_keep=1)
        row: list[float] = output.logits[0, -1].float().tolist()
        return row
