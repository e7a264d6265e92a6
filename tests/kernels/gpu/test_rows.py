"""Norms, gates, rotation with the KV write, and moving blocks, in Triton against the reference."""

from __future__ import annotations

import pytest
import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 576, 1000])
def test_rms_norm(device, gpu_kernels, reference, assert_agree, dtype, width):
    x, weight = random(5, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    actual = gpu_kernels.rms_norm(x.to(device), weight.to(device), 1e-5)
    assert_agree(actual, reference.rms_norm(x, weight, 1e-5), "gpu")


def test_rms_norm_of_heads_and_of_strided_rows(device, gpu_kernels, reference, assert_agree):
    heads, weight = random(5, 3, 64), random(64, seed=1)
    assert_agree(
        gpu_kernels.rms_norm(heads.to(device), weight.to(device), 1e-5),
        reference.rms_norm(heads, weight, 1e-5),
        "gpu",
    )
    rows = random(5, 200)[:, :64]
    assert_agree(
        gpu_kernels.rms_norm(rows.to(device), weight.to(device), 1e-5),
        reference.rms_norm(rows, weight, 1e-5),
        "gpu",
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_add_rms_norm_keeps_the_rounded_sum(device, gpu_kernels, reference, assert_agree, dtype):
    x, residual = random(4, 576, dtype=dtype), random(4, 576, dtype=dtype, seed=1)
    weight = random(576, dtype=dtype, seed=2)
    expected_residual = residual.clone()
    expected = reference.add_rms_norm(x, expected_residual, weight, 1e-5)
    kept = residual.to(device, copy=True)
    assert_agree(gpu_kernels.add_rms_norm(x.to(device), kept, weight.to(device), 1e-5), expected, "gpu")
    assert_agree(kept, expected_residual, "gpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 1536, 1500])
def test_gates(device, gpu_kernels, reference, assert_agree, dtype, width):
    gate_up = random(3, 2 * width, dtype=dtype)
    assert_agree(gpu_kernels.silu_and_mul(gate_up.to(device)), reference.silu_and_mul(gate_up), "gpu")
    assert_agree(gpu_kernels.gelu_and_mul(gate_up.to(device)), reference.gelu_and_mul(gate_up), "gpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(9, 3, 64), (8, 1, 80), (2, 2, 96), (4, 4, 128)], ids=str)
@pytest.mark.parametrize("rotated", [True, False])
def test_rotation_and_kv_write(case_of, device, gpu_kernels, reference, assert_agree, heads, dtype, rotated):
    query_heads, kv_heads, dim = heads
    case = case_of(heads, [(1, 1), (1, 40), (7, 20)], dtype=dtype)
    tokens = len(case.batch.positions)
    merged = random(tokens, query_heads + 2 * kv_heads, dim, dtype=dtype)
    cos_sin = random(64, dim, seed=3) if rotated else None
    results = []
    for kernels, where in ((reference, torch.device("cpu")), (gpu_kernels, device)):
        moved = case.on(where)
        qkv, cache = merged.to(where, copy=True), moved.kv_cache.clone()
        query, key, value = qkv.split([query_heads, kv_heads, kv_heads], dim=1)
        angles = None if cos_sin is None else cos_sin.to(where)
        kernels.rotary_and_write_kv(query, key, value, cache, moved.batch, angles)
        results.append((query.cpu(), cache.cpu()))
    assert_agree(results[1][0], results[0][0], "gpu")
    expected = results[0][1]
    assert torch.equal(results[1][1].isnan(), expected.isnan())
    assert_agree(results[1][1].nan_to_num(), expected.nan_to_num(), "gpu")


def test_a_float8_cache_is_written_scaled(case_of, device, gpu_kernels, reference):
    case = case_of((4, 2, 64), [(1, 5), (6, 9)], dtype=torch.bfloat16)
    scales = torch.tensor([[0.5, 2.0], [4.0, 0.25]])
    # Numbers that e4m3 holds exactly: the interpreter rounds others in its own way.
    choice = torch.randint(0, 4, (7, 8, 64), generator=torch.Generator().manual_seed(0))
    merged = torch.tensor([-3.0, -1.0, 1.5, 2.0], dtype=torch.bfloat16)[choice]
    caches = []
    for kernels, where in ((reference, torch.device("cpu")), (gpu_kernels, device)):
        moved = case.on(where)
        cache = torch.zeros_like(moved.kv_cache).to(torch.float8_e4m3fn)
        query, key, value = merged.to(where, copy=True).split([4, 2, 2], dim=1)
        kernels.rotary_and_write_kv(query, key, value, cache, moved.batch, None, scales.to(where))
        caches.append(cache.float().cpu())
    assert caches[0].count_nonzero() == merged[:, 4:].numel()
    assert torch.equal(caches[1], caches[0])


def test_blocks_are_copied_gathered_and_scattered(device, gpu_kernels):
    pool = random(7, 3, 2, 4, 2, 20)
    moved = pool.to(device, copy=True)
    gpu_kernels.copy_blocks(moved, torch.tensor([0, 5], device=device), torch.tensor([3, 1], device=device))
    expected = pool.clone()
    expected[[3, 1]] = pool[[0, 5]]
    assert torch.equal(moved.cpu(), expected)
    content = gpu_kernels.gather_blocks(moved, torch.tensor([6, 2], device=device))
    assert torch.equal(content.cpu(), expected[[6, 2]])
    gpu_kernels.scatter_blocks(moved, torch.tensor([0, 4], device=device), content)
    expected[[0, 4]] = expected[[6, 2]]
    assert torch.equal(moved.cpu(), expected)
