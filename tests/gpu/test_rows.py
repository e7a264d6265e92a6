"""Norms, gates, rotation with the KV write, and moving blocks on a device, against the reference on the CPU."""

from __future__ import annotations

import pytest
import torch
from attention_cases import build_case, check_close

pytestmark = pytest.mark.usefixtures("poisoned_outputs")

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(scope="session")
def tokens(interpreted):
    return 5 if interpreted else 700


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 1000, 4096, 8192])
def test_rms_norm(device, gpu_kernels, reference, tokens, dtype, width):
    x, weight = random(tokens, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    actual = gpu_kernels.rms_norm(x.to(device), weight.to(device), 1e-5)
    check_close(actual, reference.rms_norm(x, weight, 1e-5), "gpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [576, 4096])
def test_add_rms_norm_keeps_the_rounded_sum(
    device, interpreted, gpu_kernels, reference, tokens, dtype, width
):
    x, residual = random(tokens, width, dtype=dtype), random(tokens, width, dtype=dtype, seed=1)
    weight = random(width, dtype=dtype, seed=2)
    kept = residual.to(device, copy=True)
    actual = gpu_kernels.add_rms_norm(x.to(device), kept, weight.to(device), 1e-5)
    kind = "interpreted add_rms_norm" if interpreted and dtype is torch.bfloat16 else "gpu"
    check_close(actual, reference.add_rms_norm(x, residual, weight, 1e-5), kind)
    check_close(kept, residual, "gpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_do_not_depend_on_the_batch(device, gpu_kernels, tokens, dtype):
    x, weight = random(tokens, 4096, dtype=dtype).to(device), random(4096, dtype=dtype, seed=1).to(device)
    normed, gated = gpu_kernels.rms_norm(x, weight, 1e-5), gpu_kernels.silu_and_mul(x)
    for row in range(0, tokens, max(1, tokens // 5)):
        assert torch.equal(gpu_kernels.rms_norm(x[row : row + 1], weight, 1e-5), normed[row : row + 1])
        assert torch.equal(gpu_kernels.silu_and_mul(x[row : row + 1]), gated[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 1500, 14336])
def test_gates(device, gpu_kernels, reference, tokens, dtype, width):
    gate_up = random(tokens, 2 * width, dtype=dtype)
    check_close(gpu_kernels.silu_and_mul(gate_up.to(device)), reference.silu_and_mul(gate_up), "gpu")
    check_close(gpu_kernels.gelu_and_mul(gate_up.to(device)), reference.gelu_and_mul(gate_up), "gpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(9, 3, 64), (8, 1, 80), (2, 2, 96), (32, 8, 128), (2, 1, 256)], ids=str)
@pytest.mark.parametrize("rotated", [True, False])
def test_rotation_and_kv_write(device, gpu_kernels, reference, heads, dtype, rotated):
    query_heads, kv_heads, dim = heads
    case = build_case(heads, [(1, 1), (1, 40), (7, 20)], dtype=dtype)
    merged = random(len(case.batch.positions), query_heads + 2 * kv_heads, dim, dtype=dtype)
    cos_sin = random(64, dim, seed=3) if rotated else None
    results = []
    for kernels, where in ((reference, CPU), (gpu_kernels, device)):
        moved = case.on(where)
        qkv, cache = merged.to(where, copy=True), moved.kv_cache.clone()
        query, key, value = qkv.split([query_heads, kv_heads, kv_heads], dim=1)
        angles = None if cos_sin is None else cos_sin.to(where)
        kernels.rotary_and_write_kv(query, key, value, cache, moved.batch, angles)
        results.append((query.cpu(), cache.cpu()))
    (expected_query, expected_cache), (query, cache) = results
    check_close(query, expected_query, "gpu")
    assert torch.equal(cache.isnan(), expected_cache.isnan())
    check_close(cache.nan_to_num(), expected_cache.nan_to_num(), "gpu")


def test_a_float8_cache_is_written_scaled(device, gpu_kernels, reference):
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("this GPU has no float8_e4m3fn")
    case = build_case((4, 2, 64), [(1, 5), (6, 9)], dtype=torch.bfloat16)
    scales = torch.tensor([[0.5, 2.0], [4.0, 0.25]])
    # Numbers that e4m3 holds exactly: the interpreter rounds others in its own way.
    choice = torch.randint(0, 4, (7, 8, 64), generator=torch.Generator().manual_seed(0))
    merged = torch.tensor([-3.0, -1.0, 1.5, 2.0], dtype=torch.bfloat16)[choice]
    caches = []
    for kernels, where in ((reference, CPU), (gpu_kernels, device)):
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
