"""Norms, SwiGLU, rotary and KV writes: against float64 sums and Hugging Face's own modules."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

DTYPES = [torch.float32, torch.bfloat16]
ALL_DTYPES = [*DTYPES, torch.float16]
BOTH = ["cpu_kernels", "reference"]


@pytest.fixture(params=BOTH)
def kernels(request):
    return request.getfixturevalue(request.param)


def numbers(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def hugging_face_norm(x, weight, eps):
    norm = LlamaRMSNorm(x.shape[-1], eps)
    norm.weight.data = weight
    return norm(x).detach()


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 576), (7, 576), (3, 9, 64), (300, 17), (0, 8)], ids=str)
def test_rms_norm_rounds_where_hugging_face_does(kernels, assert_agree, shape, dtype):
    x, weight = numbers(*shape, dtype=dtype), numbers(shape[-1], dtype=dtype, seed=1)
    actual = kernels.rms_norm(x, weight, 1e-5)
    expected = hugging_face_norm(x, weight, 1e-5)
    assert actual.shape == shape
    assert_agree(actual, expected, "rows" if dtype != torch.float16 else "prefill")


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_add_rms_norm_adds_in_place_and_normalises_the_rounded_sum(kernels, assert_agree, dtype):
    x, residual, weight = (numbers(5, 96, dtype=dtype, seed=seed) for seed in range(3))
    weight = weight[0].clone()
    total = x + residual
    actual = kernels.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(residual, total)
    assert_agree(actual, hugging_face_norm(total, weight, 1e-6), "rows")


def test_rms_norm_takes_rows_of_a_larger_tensor(kernels, assert_agree):
    merged, weight = numbers(6, 10, 64), numbers(64, seed=1)
    actual = kernels.rms_norm(merged[:, 2:5], weight, 1e-5)
    assert_agree(actual, hugging_face_norm(merged[:, 2:5], weight, 1e-5), "rows")


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_silu_and_mul_equals_the_formula_in_float64(kernels, assert_agree, dtype):
    gate_up = torch.cat((numbers(3, 50) * 30, numbers(3, 50, seed=1)), dim=1).to(dtype)
    gate_up[0, :3] = torch.tensor([0.0, -300.0, 300.0])
    gate, up = gate_up.double().chunk(2, dim=1)
    expected = gate / (1 + torch.exp(-gate)) * up
    actual = kernels.silu_and_mul(gate_up)
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-10}[dtype]
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=1e-6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(rows=st.integers(1, 400), pick=st.randoms(use_true_random=False), dtype=st.sampled_from(DTYPES))
def test_a_row_does_not_depend_on_the_others(cpu_kernels, rows, pick, dtype):
    x, weight = numbers(rows, 512, dtype=dtype, seed=rows), numbers(512, dtype=dtype)
    row = pick.randrange(rows)
    alone = x[row : row + 1].clone()
    assert torch.equal(
        cpu_kernels.rms_norm(x, weight, 1e-5)[row], cpu_kernels.rms_norm(alone, weight, 1e-5)[0]
    )
    assert torch.equal(cpu_kernels.silu_and_mul(x)[row], cpu_kernels.silu_and_mul(alone)[0])


def rotary_case(case_of, dtype, block_size=16):
    """New tokens of three sequences over an all-NaN cache, with a table of angles."""
    case = case_of((9, 3, 64), [(1, 50), (6, 20), (17, 17)], dtype=dtype, block_size=block_size)
    tokens = len(case.batch.positions)
    merged = numbers(tokens, 15, 64, dtype=dtype)
    angles = numbers(64, 32, seed=3)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    cache = torch.full((case.kv_cache.shape[0], 3, *case.kv_cache.shape[1:]), torch.nan, dtype=dtype)[:, 1]
    return case.batch, merged, cos_sin, cache


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_rotary_equals_hugging_faces_and_writes_only_its_slots(
    case_of, kernels, assert_agree, dtype, block_size
):
    batch, merged, cos_sin, cache = rotary_case(case_of, dtype, block_size)
    query, key, value = merged.clone().split([9, 3, 3], dim=1)
    cos, sin = (half.repeat(1, 2) for half in cos_sin[batch.positions].chunk(2, dim=1))
    expected_query, expected_key = apply_rotary_pos_emb(query.float(), key.float(), cos, sin, unsqueeze_dim=1)

    kernels.rotary_and_write_kv(query, key, value, cache, batch, cos_sin)

    kind = "rows" if dtype != torch.float16 else "prefill"
    assert_agree(query, expected_query.to(dtype), kind)
    blocks, offsets = batch.slot_mapping // block_size, batch.slot_mapping % block_size
    assert_agree(cache[blocks, 0, offsets], expected_key.to(dtype), kind)
    assert torch.equal(cache[blocks, 1, offsets], value)
    assert cache.isfinite().sum() == len(batch.positions) * 2 * 3 * 64
    assert torch.equal(value, merged[:, 12:])


def test_without_angles_nothing_is_rotated(case_of, kernels):
    batch, merged, _, cache = rotary_case(case_of, torch.float32)
    query, key, value = merged.clone().split([9, 3, 3], dim=1)
    kernels.rotary_and_write_kv(query, key, value, cache, batch, None)
    assert torch.equal(query, merged[:, :9])
    assert torch.equal(cache[batch.slot_mapping // 16, 0, batch.slot_mapping % 16], merged[:, 9:12])
    assert torch.equal(cache[batch.slot_mapping // 16, 1, batch.slot_mapping % 16], merged[:, 12:])


def test_many_tokens_are_rotated_as_one_by_one(case_of, cpu_kernels):
    """Enough tokens for several threads."""
    case = case_of((9, 3, 64), [(400, 400)])
    merged, angles = numbers(400, 15, 64), numbers(400, 64, seed=1)
    many = merged.clone()
    cache, single = torch.zeros(2, *case.kv_cache.shape)
    cpu_kernels.rotary_and_write_kv(*many.split([9, 3, 3], dim=1), cache, case.batch, angles)
    for token in range(0, 400, 57):
        one = merged[token : token + 1].clone()
        single_batch = case_of((9, 3, 64), [(1, token + 1)]).batch
        single_batch.slot_mapping[:] = case.batch.slot_mapping[token]
        cpu_kernels.rotary_and_write_kv(*one.split([9, 3, 3], dim=1), single, single_batch, angles)
        assert torch.equal(one[0, :9], many[token, :9])
        where = case.batch.slot_mapping[token] // 16, slice(None), case.batch.slot_mapping[token] % 16
        assert torch.equal(single[where], cache[where])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_copy_blocks_copies_whole_blocks_and_nothing_else(kernels, dtype):
    pool = numbers(8, 2, 2, 4, 3, 8, dtype=dtype)
    before = pool.clone()
    pairs = torch.tensor([[1, 5], [1, 7], [0, 2]])
    kernels.copy_blocks(pool, pairs[:, 0], pairs[:, 1])
    for source, target in pairs:
        assert torch.equal(pool[target], before[source])
    untouched = [0, 1, 3, 4, 6]
    assert torch.equal(pool[untouched], before[untouched])
