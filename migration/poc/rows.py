"""What was measured, as plain values: the content of `poc.json`, and what table and page show."""

from __future__ import annotations

import dataclasses
from typing import Any

from pageport.migration.poc.measure import Measurement
from pageport.migration.poc.parity import Parity
from pageport.migration.poc.run import Outcome
from pageport.migration.poc.statistics import Percentiles


def outcome_as_json(outcome: Outcome) -> dict[str, Any]:
    """`rows`, `parity`, `environment` and `load`; all numbers are of this run."""
    return {
        "rows": [row(measurement) for measurement in outcome.measurements],
        "parity": parity_as_json(outcome),
        "environment": {
            **outcome.environment,
            "dtype": outcome.plan.dtype,
            "load_average_before": round(outcome.load_average, 2),
        },
        "load": {
            "requests": len(outcome.load),
            "concurrency": outcome.plan.concurrency,
            "seed": outcome.plan.seed,
            "prompt_tokens": sum(request.prompt_tokens for request in outcome.load),
            "output_tokens": sum(request.output_tokens for request in outcome.load),
        },
    }


def row(measurement: Measurement) -> dict[str, Any]:
    """One variant. Times in milliseconds, sizes in bytes; `itl_ms` holds nulls where answers come in one piece.

    `kv_bytes_reserved` and `kv_bytes_used` are averages over the load's time.
    """
    result, kv = measurement.result, measurement.kv
    waste = kv.waste_ratio
    return {
        "name": measurement.variant.entry,
        "title": measurement.variant.title,
        "seconds": round(result.seconds, 3),
        "output_tokens_per_s": round(result.output_tokens_per_s, 2),
        "ttft_ms": _percentiles(result.ttft),
        "itl_ms": _percentiles(result.itl),
        "peak_running": kv.peak_running,
        "kv_bytes_reserved": round(kv.mean_reserved),
        "kv_bytes_used": round(kv.mean_used),
        "kv_bytes_reserved_peak": round(kv.peak_reserved),
        "kv_waste_ratio": None if waste is None else round(waste, 4),
    }


def parity_as_json(outcome: Outcome) -> dict[str, Any]:
    """Totals over the dtypes that were compared, each dtype by itself, and transformers against itself."""
    return {
        "compared": sum(parity.compared for parity in outcome.parity),
        "equal": sum(parity.equal for parity in outcome.parity),
        "first_differences": [
            dataclasses.asdict(difference)
            for parity in outcome.parity
            for difference in parity.first_differences
        ],
        "by_dtype": {parity.dtype: _counts(parity) for parity in outcome.parity},
        "transformers_batched_against_single": _counts(outcome.baseline),
        "passes_equal": outcome.passes_equal,
    }


def _counts(parity: Parity) -> dict[str, int]:
    counts = dataclasses.asdict(parity)
    return {name: counts[name] for name in ("compared", "equal", "tokens_compared", "tokens_equal")}


def _percentiles(values: Percentiles | None) -> dict[str, float | None]:
    if values is None:
        return {"p50": None, "p95": None}
    return {"p50": round(values.p50, 2), "p95": round(values.p95, 2)}
