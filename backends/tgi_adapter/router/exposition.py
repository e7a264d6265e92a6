"""Prometheus' text format as TGI's router writes it: counters without `_total`, whole numbers without a point."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; charset=utf-8"

_TGI = "tgi_"
_UNUSED_SUFFIX = "_created"


def exposition(registry: CollectorRegistry) -> str:
    """All that has happened so far; what TGI's dashboards have not seen yet is left out, as there."""
    return "".join(_family(metric) for metric in registry.collect() if _has_happened(metric))


def _has_happened(metric: Metric) -> bool:
    if metric.type == "gauge" or not metric.name.startswith(_TGI):
        return True
    return any(sample.value for sample in metric.samples if not sample.name.endswith(_UNUSED_SUFFIX))


def _family(metric: Metric) -> str:
    name = metric.name
    if metric.type == "counter" and not name.startswith(_TGI):
        name += "_total"
    lines = [f"# HELP {name} {metric.documentation}", f"# TYPE {name} {metric.type}", *_samples(metric)]
    return "\n".join(lines) + "\n\n"


def _samples(metric: Metric) -> Iterator[str]:
    for sample in metric.samples:
        if sample.name.endswith(_UNUSED_SUFFIX):
            continue
        name = sample.name
        if metric.type == "counter" and name.startswith(_TGI):
            name = name.removesuffix("_total")
        yield f"{name}{_labels(sample)} {_number(sample.value)}"


def _labels(sample: Sample) -> str:
    if not sample.labels:
        return ""
    pairs = ((key, _bound(value) if key == "le" else value) for key, value in sample.labels.items())
    return "{" + ",".join(f'{key}="{value}"' for key, value in pairs) + "}"


def _bound(text: str) -> str:
    return text if text == "+Inf" else _number(float(text))


def _number(value: float) -> str:
    """The shortest digits that give this number again, without an exponent."""
    return format(Decimal(int(value) if value == int(value) else repr(value)), "f")
