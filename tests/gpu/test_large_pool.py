"""Pools with more elements than a 32-bit index counts. What lies behind is what lies in a small pool, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import build_case

HEADS = (32, 8, 128)
BLOCKS = 70_000  # of 32,768 elements: 2.3e9, 4.6 GB in bfloat16


@pytest.fixture(scope="module")
def large(device, interpreted):
    """An empty layer's cache [BLOCKS, 2, 16, 8, 128]; its last blocks start behind 2**31 elements."""
    if interpreted:
        pytest.skip("needs a device: 5 GB")
    size = BLOCKS * 2 * 16 * HEADS[1] * HEADS[2]
    if torch.cuda.mem_get_info(device)[0] < 3 * size:
        pytest.skip("needs 7 GB of free GPU memory")
    cache = torch.empty((BLOCKS, 2, 16, *HEADS[1:]), dtype=torch.bfloat16, device=device)
    assert cache[-1000].storage_offset() > 2**31
    return cache


def behind(case, large):
    """The case with its blocks at the end of the large cache."""
    count = len(case.kv_cache)
    large[-count:] = case.kv_cache
    shift, batch = BLOCKS - count, case.batch
    return replace(
        case,
        kv_cache=large,
        batch=replace(
            batch,
            block_tables=torch.where(batch.block_tables < count, batch.block_tables + shift, 0),
            slot_mapping=batch.slot_mapping + shift * 16,
        ),
    )


def test_attention(device, gpu_kernels, large):
    case = build_case(HEADS, [(1, 5), (1, 1500), (70, 300)], dtype=torch.bfloat16).on(device)
    expected = case.run(gpu_kernels)
    assert not expected.isnan().any()
    assert torch.equal(behind(case, large).run(gpu_kernels), expected)


def test_the_kv_write(device, gpu_kernels, large):
    case = build_case(HEADS, [(1, 5), (70, 300)], dtype=torch.bfloat16).on(device)
    far = behind(case, large)
    new = torch.randn((71, 48, 128), device=device).bfloat16()
    angles = torch.randn((300, 128), device=device)
    for one in (case, far):
        query, key, value = new.clone().split([32, 8, 8], dim=1)
        gpu_kernels.rotary_and_write_kv(query, key, value, one.kv_cache, one.batch, angles)
    count = len(case.kv_cache)
    assert torch.equal(large[-count:].nan_to_num(), case.kv_cache.nan_to_num())


def test_moving_blocks(device, gpu_kernels, large):
    content = torch.randn((2, *large.shape[1:]), device=device).bfloat16()
    last = torch.tensor([BLOCKS - 1, BLOCKS - 3], device=device)
    gpu_kernels.scatter_blocks(large, last, content)
    assert torch.equal(large[last], content)
    assert torch.equal(gpu_kernels.gather_blocks(large, last), content)
    gpu_kernels.copy_blocks(large, last, last - 4)
    assert torch.equal(large[last - 4], content)
