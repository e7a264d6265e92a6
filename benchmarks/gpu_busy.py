"""How much of the time a GPU computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


def busy_share(step: Callable[[], object], steps: int) -> float:
    """The share of the time from the first operation's start to the last one's end in which some operation runs.

    The profiler makes launching slower, so that the share without it is higher, for steps of many launches above all.
    """
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    return covered_share(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    )


def covered_share(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals, as a share of the span from the first start to the last end; 0: none."""
    ordered = sorted(intervals)
    if not ordered:
        return 0.0
    begin, reached = ordered[0][0], ordered[0][0]
    covered = 0.0
    for start, end in ordered:
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered / (reached - begin)
