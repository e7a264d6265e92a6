import pytest

from pageport.core.kv_manager import KVUsage
from pageport.core.waste_meter import WasteMeter


def test_averages_over_time_with_each_reading_held_until_the_next() -> None:
    meter = WasteMeter()
    meter.observe(KVUsage(100, 90), now=10.0)
    meter.observe(KVUsage(200, 100), now=11.0)
    meter.observe(KVUsage(0, 0), now=14.0)
    meter.observe(KVUsage(100, 100), now=50.0)
    # 1 s with 10 of 100 wasted, 3 s with 100 of 200; idle time counts for nothing.
    assert meter.mean_ratio == pytest.approx((10 * 1 + 100 * 3) / (100 * 1 + 200 * 3))


def test_nothing_reserved_is_no_waste() -> None:
    meter = WasteMeter()
    assert meter.mean_ratio == 0.0
    meter.observe(KVUsage(0, 0), now=1.0)
    meter.observe(KVUsage(0, 0), now=2.0)
    assert meter.mean_ratio == 0.0
