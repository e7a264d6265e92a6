"""What surrounds the compiled code: scalars, threads, the cache on disk."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from numba import njit

from pageport.kernels.cpu import compile_cache, scalars, threads

NORM_ONCE = """
import torch
from pageport.kernels import make_kernels
make_kernels("cpu", torch.device("cpu")).rms_norm(torch.ones(2, 8), torch.ones(8), 1e-5)
"""


@njit(fastmath=scalars.FAST_MATH)
def map_exp2(x, out):
    for i in range(len(x)):
        out[i] = scalars.exp2(x[i])


@njit(fastmath=scalars.FAST_MATH)
def map_tanh(x, out):
    for i in range(len(x)):
        out[i] = scalars.tanh(x[i])


@njit
def round_trip(x, bits, back):
    for i in range(len(x)):
        bits[i] = scalars.narrow(x[i], bits[i])
        back[i] = scalars.widen(bits[i])


def test_exp2_is_accurate_to_float32():
    x = np.linspace(-126, 127, 1_000_003, dtype=np.float32)
    out = np.empty_like(x)
    map_exp2(x, out)
    assert np.abs(out / np.exp2(x.astype(np.float64)) - 1).max() < 3e-7


def test_exp2_far_below_is_next_to_nothing_and_exact_at_whole_numbers():
    x = np.array([-np.inf, -1e30, -200, 0, 1, -1, 10], dtype=np.float32)
    out = np.empty_like(x)
    map_exp2(x, out)
    assert (out[:3] <= 2.0**-126).all()
    assert out[3:].tolist() == [1.0, 2.0, 0.5, 1024.0]


def test_tanh_is_accurate():
    x = np.linspace(-100, 100, 100_001, dtype=np.float32)
    out = np.empty_like(x)
    map_tanh(x, out)
    assert np.abs(out - np.tanh(x.astype(np.float64))).max() < 5e-7


def test_bfloat16_is_rounded_as_torch_does():
    edge = [1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, 1e-40, 0.0, -0.0, float("inf"), float("-inf"), float("nan")]
    x = torch.cat((torch.randn(100_000) * 100, torch.tensor(edge)))
    bits, back = np.empty(len(x), np.uint16), np.empty(len(x), np.float32)
    round_trip(x.numpy(), bits, back)
    expected = x.bfloat16()
    assert np.array_equal(bits[:-1], expected.view(torch.uint16).numpy()[:-1])
    np.testing.assert_array_equal(back, expected.float().numpy())


def test_parallel_work_runs_on_torchs_threads(case_of, cpu_kernels):
    """No second team: a parallel kernel starts no thread beyond those that torch's own operations use."""
    if not sys.platform.startswith("linux"):
        pytest.skip("counts threads in /proc")
    torch.ones(1_000_000).add_(1)
    case = case_of((9, 3, 64), [(1, 2000)] * 2)
    before = len(os.listdir("/proc/self/task"))
    case.run(cpu_kernels)
    assert len(os.listdir("/proc/self/task")) == before
    assert threads._find_openmp() is not None


def test_one_thread_does_it_all_where_no_openmp_is_found(case_of, cpu_kernels, monkeypatch):
    case = case_of((9, 3, 64), [(1, 2000)] * 2)
    expected = case.run(cpu_kernels)
    monkeypatch.setattr(threads, "_find_openmp", lambda: None)
    assert torch.equal(case.run(cpu_kernels), expected)


def run_norm(**environment):
    result = subprocess.run(
        [sys.executable, "-c", NORM_ONCE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_a_second_process_compiles_nothing(tmp_path):
    run_norm(NUMBA_CACHE_DIR=str(tmp_path))
    compiled = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb*")}
    assert compiled
    assert {path.relative_to(tmp_path).parts[0] for path in compiled} == {compile_cache.digest_of_sources()}
    run_norm(NUMBA_CACHE_DIR=str(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.nb*")} == compiled


def test_the_cache_moves_where_home_cannot_be_written(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(compile_cache.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(compile_cache.numba.config, "CACHE_DIR", "")
    folder = compile_cache.use_compile_cache()
    assert folder.is_relative_to(tmp_path)
    assert not folder.is_relative_to(blocked)
    assert compile_cache.use_compile_cache() == folder
