"""Paged attention in Triton against the reference, and against itself in other company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SPLIT = 512  # tokens; a decode splits its context at the multiples

# Groups of 1, 3 and 8 query heads; every head size that is asked for, padded ones too.
HEADS = [(2, 2, 64), (9, 3, 64), (8, 1, 80), (2, 2, 96), (4, 2, 112), (8, 1, 128), (2, 1, 256)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def compare(case, device, gpu_kernels, reference, assert_agree, **options):
    actual = case.on(device).run(gpu_kernels, **options)
    assert actual.dtype == case.query.dtype
    assert actual.is_contiguous()
    on_cpu = {
        name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in options.items()
    }
    assert_agree(actual, case.run(reference, **on_cpu), "gpu")


@st.composite
def sequences(draw):
    """(new tokens, all tokens): decodes and chunks, near block, tile and split borders more often than not."""
    near = st.sampled_from([8, 16, 32, 64, 128, SPLIT]).flatmap(
        lambda border: st.integers(border - 1, border + 1)
    )
    total = draw(st.one_of(near, st.integers(1, 40)))
    return draw(st.one_of(st.just(1), st.integers(1, min(total, 60)))), total


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    heads=st.sampled_from(HEADS),
    dtype=st.sampled_from(DTYPES),
    block_size=st.sampled_from([8, 16, 32, 64, 128]),
    lengths=st.lists(sequences(), min_size=1, max_size=4),
    window=st.one_of(st.none(), st.integers(1, 300)),
    soft_cap=st.one_of(st.none(), st.just(1.5)),
    has_sinks=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_batch_equals_the_reference(
    case_of, device, gpu_kernels, reference, assert_agree,
    heads, dtype, block_size, lengths, window, soft_cap, has_sinks, seed,
):  # fmt: skip
    case = case_of(heads, lengths, block_size=block_size, dtype=dtype, visible_from=window, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    sinks = torch.randn(heads[0], generator=generator).to(device) if has_sinks else None
    compare(
        case, device, gpu_kernels, reference, assert_agree,
        sliding_window=window, soft_cap=soft_cap, sinks=sinks,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 128])
def test_block_and_split_borders(case_of, device, gpu_kernels, reference, assert_agree, block_size, dtype):
    totals = [1, block_size - 1, block_size, block_size + 1, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 2]
    lengths = [(1, total) for total in totals] + [(min(5, total), total) for total in totals]
    compare(
        case_of((9, 3, 64), lengths, block_size=block_size, dtype=dtype),
        device,
        gpu_kernels,
        reference,
        assert_agree,
    )


@pytest.mark.parametrize("window", [1, 3, 8, SPLIT, SPLIT + 1])
def test_windows_smaller_than_a_block_and_as_long_as_a_split(
    case_of, device, gpu_kernels, reference, assert_agree, window
):
    case = case_of((9, 3, 64), [(1, 5), (1, 600), (1, 2 * SPLIT), (30, 300)], visible_from=window)
    compare(case, device, gpu_kernels, reference, assert_agree, sliding_window=window)


def test_a_chunk_of_many_tiles_and_a_single_long_prompt(
    case_of, device, gpu_kernels, reference, assert_agree
):
    case = case_of((9, 3, 64), [(130, 130), (1, 1), (43, 90), (2, 2)])
    compare(case, device, gpu_kernels, reference, assert_agree)


@pytest.mark.parametrize("window", [None, 20])
def test_a_float8_cache_is_scaled_by_head(case_of, device, gpu_kernels, reference, assert_agree, window):
    case = case_of((8, 2, 64), [(1, 70), (1, SPLIT + 3), (20, 40)], dtype=torch.bfloat16)
    scales = torch.tensor([[0.5, 2.0], [4.0, 0.25]])
    stored = case.kv_cache.nan_to_num(nan=0.0).to(torch.float8_e4m3fn)
    compare(
        replace(case, kv_cache=stored), device, gpu_kernels, reference, assert_agree,
        kv_scales=scales.to(device), sliding_window=window,
    )  # fmt: skip


# Cuts between query tiles (10 and 42 tokens for groups of three): the interpreter's matrix products, unlike a GPU's,
# give a row other last bits at another place of the matrix.
@pytest.mark.parametrize(("dtype", "cut"), [(torch.float32, 30), (torch.bfloat16, 42)], ids=str)
def test_a_row_does_not_depend_on_the_batch_nor_on_how_its_prompt_was_cut(
    case_of, device, gpu_kernels, dtype, cut
):
    """Bit for bit: alone, among others, and as two chunks instead of one."""
    case = case_of((9, 3, 64), [(1, 3), (1, SPLIT + 9), (70, 200), (33, 33)], dtype=dtype).on(device)
    together = case.run(gpu_kernels)
    for index in range(4):
        alone = case.pick([index]).on(device).run(gpu_kernels)
        assert torch.equal(alone, together[case.rows(index)])
    whole = case.pick([2]).on(device)
    late = replace(whole, query=whole.query[cut:], batch=_tail(whole.batch, cut))
    assert torch.equal(late.run(gpu_kernels), whole.run(gpu_kernels)[cut:])


def _tail(batch, skipped):
    """The batch of one sequence without its first `skipped` new tokens."""
    left = batch.query_lens_host[0] - skipped
    return replace(
        batch,
        query_start_loc=torch.tensor([0, left], dtype=torch.int32, device=batch.query_start_loc.device),
        positions=batch.positions[skipped:],
        slot_mapping=batch.slot_mapping[skipped:],
        query_lens_host=(left,),
    )
