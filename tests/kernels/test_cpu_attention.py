"""The CPU's attention against the reference, and against itself in other company."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pageport.kernels.cpu.matmul import multiplies_here

PARTITION = 256  # tokens; decode attention splits a context at its multiples

# Groups of 1, 3 and 8 query heads; head sizes whose largest power of two is 64, 16 and 4.
HEADS = [(9, 3, 64), (8, 1, 80), (2, 2, 128), (6, 2, 20)]
DTYPES = [torch.float32, torch.bfloat16]


def compare(case, cpu_kernels, reference, assert_agree, **options):
    actual, expected = case.run(cpu_kernels, **options), case.run(reference, **options)
    assert actual.dtype == case.query.dtype
    assert actual.is_contiguous()
    decodes = case.batch.num_decodes
    assert_agree(actual[:decodes], expected[:decodes], "rows")
    assert_agree(actual[decodes:], expected[decodes:], "prefill")


@st.composite
def sequences(draw):
    """(new tokens, all tokens): decodes and chunks, near block and partition borders more often than not."""
    near = st.sampled_from([8, 16, 32, PARTITION, 2 * PARTITION]).flatmap(
        lambda border: st.integers(border - 1, border + 1)
    )
    total = draw(st.one_of(near, st.integers(1, 40)))
    return draw(st.one_of(st.just(1), st.integers(1, min(total, 40)))), total


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    heads=st.sampled_from(HEADS),
    dtype=st.sampled_from(DTYPES),
    block_size=st.sampled_from([8, 16, 32]),
    lengths=st.lists(sequences(), min_size=1, max_size=4),
    window=st.one_of(st.none(), st.integers(1, 300)),
    soft_cap=st.one_of(st.none(), st.just(1.5)),
    seed=st.integers(0, 2**31),
)
def test_any_batch_equals_the_reference(
    case_of, cpu_kernels, reference, assert_agree, heads, dtype, block_size, lengths, window, soft_cap, seed
):
    case = case_of(heads, lengths, block_size=block_size, dtype=dtype, visible_from=window, seed=seed)
    compare(case, cpu_kernels, reference, assert_agree, sliding_window=window, soft_cap=soft_cap)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16], ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_block_and_partition_borders(case_of, cpu_kernels, reference, assert_agree, block_size, dtype):
    totals = [
        1,
        block_size - 1,
        block_size,
        block_size + 1,
        PARTITION - 1,
        PARTITION,
        PARTITION + 1,
        4 * PARTITION + 2,
    ]
    lengths = [(1, total) for total in totals] + [(min(5, total), total) for total in totals]
    case = case_of((9, 3, 64), lengths, block_size=block_size, dtype=dtype)
    compare(case, cpu_kernels, reference, assert_agree)


@pytest.mark.parametrize("window", [1, 3, 8, PARTITION, PARTITION + 1])
def test_windows_smaller_than_a_block_and_as_long_as_a_partition(
    case_of, cpu_kernels, reference, assert_agree, window
):
    case = case_of((9, 3, 64), [(1, 5), (1, 600), (1, 2 * PARTITION), (30, 300)], visible_from=window)
    compare(case, cpu_kernels, reference, assert_agree, sliding_window=window)


def test_large_logits_do_not_overflow(case_of, cpu_kernels, reference, assert_agree):
    case = case_of((9, 3, 64), [(1, 300), (20, 40)])
    case.query.mul_(200)  # logits of several hundred: 2**logit is past float32's range
    actual, expected = case.run(cpu_kernels), case.run(reference)
    assert_agree(actual, expected, "prefill")


def test_a_chunk_of_several_tiles(case_of, cpu_kernels, reference, assert_agree):
    case = case_of((9, 3, 64), [(300, 350)], visible_from=130)
    compare(case, cpu_kernels, reference, assert_agree, sliding_window=130)
    compare(case, cpu_kernels, reference, assert_agree, sliding_window=130, soft_cap=2.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks_equal_the_whole(case_of, cpu_kernels, assert_agree, dtype):
    total, cuts = 90, [0, 1, 17, 48, 49, 90]
    whole = case_of((9, 3, 64), [(total, total)], dtype=dtype)
    expected = whole.run(cpu_kernels)
    for start, stop in itertools.pairwise(cuts):
        chunk = case_of((9, 3, 64), [(stop - start, stop)], dtype=dtype)
        blocks = whole.batch.block_tables[:, : -(-stop // 16)]
        chunk.batch.block_tables[:, : blocks.shape[1]] = blocks
        actual = cpu_kernels.paged_attention(
            whole.query[start:stop], whole.kv_cache, chunk.batch, scale=whole.scale
        )
        assert_agree(actual, expected[start:stop], "prefill")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 50, 130])
def test_cuts_at_the_alignment_do_not_show_in_a_single_bit(case_of, cpu_kernels, dtype, window):
    align = cpu_kernels.chunk_alignment(dtype, 64)
    total = 2 * max(align, 128) + 37
    whole = case_of((9, 3, 64), [(total, total)], dtype=dtype)
    expected = whole.run(cpu_kernels, sliding_window=window)
    for start, stop in [(0, align), (align, 128 + align), (128, total), (128 + align, total)]:
        if stop - start == 1:
            continue
        chunk = case_of((9, 3, 64), [(stop - start, stop)], dtype=dtype)
        chunk.batch.block_tables[:, : -(-stop // 16)] = whole.batch.block_tables[:, : -(-stop // 16)]
        actual = cpu_kernels.paged_attention(
            whole.query[start:stop], whole.kv_cache, chunk.batch, scale=whole.scale, sliding_window=window
        )
        assert torch.equal(actual, expected[start:stop])


def test_bfloat16_prompts_may_be_cut_anywhere_where_the_processor_multiplies_them(cpu_kernels):
    assert cpu_kernels.chunk_alignment(torch.bfloat16, 64) == (2 if multiplies_here() else 128)
    assert cpu_kernels.chunk_alignment(torch.bfloat16, 80) == 128
    assert cpu_kernels.chunk_alignment(torch.float32, 64) == 128


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sequence_does_not_depend_on_its_company(case_of, cpu_kernels, dtype):
    lengths = [(1, 1), (1, 33), (1, 300), (1, 700), (9, 20), (40, 300)]
    case = case_of((9, 3, 64), lengths, dtype=dtype)
    together = case.run(cpu_kernels)
    for index in range(len(lengths)):
        alone = case.pick([index]).run(cpu_kernels)
        assert torch.equal(alone, together[case.rows(index)])
    reordered = case.pick([3, 0, 2, 5])
    actual = reordered.run(cpu_kernels)
    for position, index in enumerate([3, 0, 2, 5]):
        assert torch.equal(actual[reordered.rows(position)], together[case.rows(index)])


def test_decode_does_not_depend_on_the_number_of_threads(case_of, cpu_kernels):
    case = case_of((9, 3, 64), [(1, 2000), (1, 513), (1, 90), (1, 2000)])
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            results.append(case.run(cpu_kernels))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_nothing_is_read_behind_a_chunk_or_outside_its_window(case_of, cpu_kernels, reference, assert_agree):
    """Tiles of 64 tokens reach over both ends; what lies there is NaN."""
    for lengths, window in [([(10, 70), (64, 64)], None), ([(5, 200)], 20), ([(3, 130)], 64)]:
        case = case_of((8, 1, 64), lengths, dtype=torch.bfloat16, visible_from=window)
        compare(case, cpu_kernels, reference, assert_agree, sliding_window=window)


def test_scratch_memory_is_clean_after_a_larger_batch(case_of, cpu_kernels):
    small = case_of((9, 3, 64), [(1, 300)], seed=1)
    before = small.run(cpu_kernels)
    case_of((9, 3, 64), [(1, 900)] * 5, seed=2).run(cpu_kernels)
    assert torch.equal(small.run(cpu_kernels), before)


def test_inputs_are_left_alone(case_of, cpu_kernels):
    case = case_of((9, 3, 64), [(1, 40), (7, 20)])
    query, cache = case.query.clone(), case.kv_cache.clone()
    case.run(cpu_kernels)
    assert torch.equal(case.query, query)
    torch.testing.assert_close(case.kv_cache, cache, rtol=0, atol=0, equal_nan=True)
