"""Figures against numpy and against sums done by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageport.migration.poc.statistics import Percentiles, gaps, percentile, percentiles_ms, time_average

_SECONDS = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


@given(values=_SECONDS, share=st.floats(0, 1))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(
        float(np.percentile(values, share * 100)), rel=1e-9, abs=1e-9
    )


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


def test_percentiles_are_milliseconds() -> None:
    assert percentiles_ms([0.1, 0.2, 0.3]) == pytest.approx(Percentiles(200.0, 290.0))


def test_no_values_have_no_percentiles() -> None:
    assert percentiles_ms([]) is None


def test_gaps() -> None:
    assert gaps([1.0, 1.5, 4.0]) == [0.5, 2.5]
    assert gaps([1.0]) == []


def test_time_average_weighs_by_duration() -> None:
    # 10 for one second, 40 for three; the last sample only ends the third.
    assert time_average([0.0, 1.0, 4.0], [10.0, 40.0, 99.0]) == pytest.approx((10 + 3 * 40) / 4)


@pytest.mark.parametrize(("values", "expected"), [([], 0.0), ([7.0], 7.0)])
def test_time_average_of_few_samples(values: list[float], expected: float) -> None:
    assert time_average([0.0] * len(values), values) == expected
