"""Comparing answers, and what the reference model says where they part."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pageport.migration.poc.parity import Difference, compare, first_difference, judge_difference


@pytest.mark.parametrize(
    ("before", "after", "position"),
    [
        ([], [], None),
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 5, 3], 1),
        ([9], [8], 0),
        ([1, 2], [1, 2, 3], 2),
        ([1, 2, 3], [1], 1),
    ],
)
def test_first_difference(before: list[int], after: list[int], position: int | None) -> None:
    assert first_difference(before, after) == position


def test_counting() -> None:
    parity = compare("bfloat16", [[1, 2, 3], [4, 5], [6]], [[1, 2, 3], [4, 9], [6, 7]])
    assert (parity.compared, parity.equal) == (3, 1)
    assert (parity.tokens_compared, parity.tokens_equal) == (6, 3 + 1 + 1)
    assert parity.first_differences == [
        Difference("bfloat16", 1, 1, 5, 9),
        Difference("bfloat16", 2, 1, None, 7),
    ]


def test_answers_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        compare("float32", [[1]], [])


class _Recorder:
    def __init__(self) -> None:
        self.context: list[int] = []

    def logits(self, context: Sequence[int]) -> list[float]:
        self.context = list(context)
        return [10.0 * token for token in range(10)]


def test_the_judge_sees_what_both_answers_share() -> None:
    judge = _Recorder()
    difference = Difference("bfloat16", 0, 2, before_token=7, after_token=3)
    judged = judge_difference(difference, [1, 2], [4, 5, 7, 8], {"float32": judge})
    assert judge.context == [1, 2, 4, 5]
    assert judged.logits == {"float32": (70.0, 30.0)}
    assert (judged.dtype, judged.position) == ("bfloat16", 2)


def test_an_answer_that_ended_has_no_candidate() -> None:
    difference = Difference("float32", 0, 2, before_token=None, after_token=3)
    assert judge_difference(difference, [1], [4, 5], {"float32": _Recorder()}) == difference
