"""Figures of one engine after another."""

from __future__ import annotations

from dataclasses import asdict, fields

from pageport.core import EngineStats

# What says something of the engine that runs now, or of the time since it started.
OF_THIS_ENGINE = {
    "num_running",
    "num_waiting",
    "kv_blocks_total",
    "kv_blocks_used",
    "kv_bytes_total",
    "kv_bytes_used",
    "kv_waste_ratio",
    "kv_waste_ratio_mean",
    "peak_running",
    "peak_kv_blocks_used",
}


def test_every_counter_goes_on_after_the_engine_before() -> None:
    names = [field.name for field in fields(EngineStats)]
    now, before = EngineStats(**dict.fromkeys(names, 3)), EngineStats(**dict.fromkeys(names, 40))
    assert asdict(now.after(before)) == {name: 3 if name in OF_THIS_ENGINE else 43 for name in names}
