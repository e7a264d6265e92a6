"""Figures on their way to Triton's metrics, on a stand-in for its metric families."""

from __future__ import annotations

import pytest
import triton_python_backend_utils as stand_in

from pageport.backends.triton_python.metric_writers import Counter, Distribution, Gauge

LABELS = {"model": "m", "version": "1"}


def values(name: str) -> list[float]:
    return [metric.value for metric in stand_in.MetricFamily.by_name[name]]


def test_a_counter_goes_on_when_the_engine_starts_anew() -> None:
    counter = Counter(["c_total", "d_total"], "help", LABELS)
    assert [counter.update(value) for value in (5, 5, 8, 2)] == [True, False, True, True]
    assert values("c_total") == values("d_total") == [10]


def test_a_gauge_is_written_when_it_changes() -> None:
    gauge = Gauge(["g"], "help", LABELS)
    assert [gauge.update(value) for value in (0, 0, 3, 0)] == [True, False, True, True]
    assert values("g") == [0]


def test_a_distribution_is_a_cumulative_histogram_in_parts() -> None:
    distribution = Distribution(["h"], "help", LABELS, (0.1, 1.0))
    for value, count in ((0.1, 1), (0.5, 3), (7.0, 1)):
        distribution.add(value, count)
    assert distribution.flush()
    buckets = stand_in.MetricFamily.by_name["h_bucket"]
    assert {metric.labels["le"]: metric.value for metric in buckets} == {"0.1": 1, "1": 4, "+Inf": 5}
    assert (values("h_sum"), values("h_count")) == ([pytest.approx(8.6)], [5])
    assert not distribution.flush()


def test_a_server_built_without_metrics_serves_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_arguments: object) -> None:
        raise stand_in.TritonModelException("metrics not supported")

    monkeypatch.setattr(stand_in.MetricFamily, "__init__", lambda self, **arguments: refuse(**arguments))
    assert Gauge(["g"], "help", LABELS).update(1.0)
