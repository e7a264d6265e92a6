"""Timing on a device: calls take turns, none finds its data in the cache, and ceilings are measured, not looked up."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping

import checkout  # noqa: F401
import torch

from pageport.kernels import Kernels

_FLUSHED_BYTES = 1 << 28  # several times the L2 cache of any GPU


def choose_device(name: str) -> torch.device:
    """`cuda`, or `cpu` for the same code in Triton's interpreter; before anything loads triton.

    Raises:
        SystemExit: there is no GPU.
    """
    if name == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        raise SystemExit("there is no GPU; --device cpu --quick only shows that the script runs")
    return torch.device(name)


def gpu_kernels() -> Kernels:
    from pageport.kernels.gpu.kernels import GpuKernels

    return GpuKernels()


def device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return "**Triton's interpreter on the CPU: these figures mean nothing**"
    return torch.cuda.get_device_name(device)


def free_memory(device: torch.device) -> None:
    """Give memory that nobody holds any more back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class DeviceClock:
    """Seconds that calls take on the device, without what the host needs to launch them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        size = _FLUSHED_BYTES if device.type == "cuda" else 1
        self._flushed = torch.empty(size, dtype=torch.int8, device=device)

    def medians(self, calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
        """Each call's median; they take turns. A call must not wait for the device."""
        time_call = self._time_on_gpu if self._device.type == "cuda" else self._time_on_cpu
        ready = {name: self._prepare(call) for name, call in calls.items()}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(repeats):
            for name, call in ready.items():
                times[name].append(time_call(call))
        return {name: statistics.median(values) for name, values in times.items()}

    def copy_bandwidth(self, size: int, repeats: int) -> float:
        """Bytes a second, read and written ones, of a copy of `size` bytes."""
        source = torch.ones(size, dtype=torch.int8, device=self._device)
        target = torch.empty_like(source)
        seconds = self.medians({"copy": lambda: target.copy_(source)}, repeats)
        return 2 * size / seconds["copy"]

    def matrix_rate(self, sides: tuple[int, ...], repeats: int) -> float:
        """Operations a second of the fastest bfloat16 product of square random matrices."""
        return max(self._matrix_rate(side, repeats) for side in sides)

    # -- private -----------------------------------------------------------------------------------------

    def _matrix_rate(self, side: int, repeats: int) -> float:
        a, b = torch.randn((2, side, side), device=self._device).bfloat16()
        out = torch.empty_like(a)
        seconds = self.medians({"product": lambda: torch.matmul(a, b, out=out)}, repeats)
        return 2 * side**3 / seconds["product"]

    def _prepare(self, call: Callable[[], object]) -> Callable[[], object]:
        """Compile what the call needs; on a GPU, make it a graph that is launched at once."""
        if self._device.type == "cpu":
            call()
            return call
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        graph.replay()
        return graph.replay

    def _time_on_gpu(self, call: Callable[[], object]) -> float:
        self._flushed.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def _time_on_cpu(self, call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
