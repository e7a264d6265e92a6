"""Paged attention on a device against the reference on the CPU, and against itself in other company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attention_cases import build_case, check_close

pytestmark = pytest.mark.usefixtures("poisoned_outputs")

SPLIT = 512  # tokens; a decode splits its context at the multiples

# Query heads, KV heads, head size: groups of 1, 3, 4 and 8, every head size.
HEADS = [(2, 2, 64), (9, 3, 64), (8, 1, 80), (2, 2, 96), (4, 2, 112), (32, 8, 128), (8, 1, 128), (2, 1, 256)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

DECODES = [(1, 1), (1, 17), (1, SPLIT - 1), (1, SPLIT), (1, SPLIT + 1)]
LONG_DECODES = [(1, 3 * SPLIT + 5), (1, 4099), (1, 9000)]
PROMPTS = [(1, 3), (5, 5), (16, 16), (64, 64), (23, 90)]
LONG_PROMPTS = [(1000, 1000), (129, 2048), (77, 4099)]


@pytest.fixture(scope="session")
def lengths(interpreted):
    """(new tokens, all tokens) of sequences of each kind."""
    decodes, prompts = (DECODES, PROMPTS) if interpreted else (DECODES + LONG_DECODES, PROMPTS + LONG_PROMPTS)
    return {
        "decodes": decodes,
        "prompts": [pair for pair in prompts if pair[0] > 1],
        "mixed": decodes + prompts,
    }


def compare(case, device, gpu_kernels, reference, **options):
    """Run both; tensors among the options are the CPU's."""
    moved = {name: value.to(device) if torch.is_tensor(value) else value for name, value in options.items()}
    actual = case.on(device).run(gpu_kernels, **moved)
    assert actual.dtype == case.query.dtype
    assert actual.is_contiguous()
    check_close(actual, case.run(reference, **options), "gpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_every_head_size_and_type(device, gpu_kernels, reference, lengths, heads, dtype):
    compare(build_case(heads, lengths["mixed"], dtype=dtype), device, gpu_kernels, reference)


@pytest.mark.parametrize("kind", ["decodes", "prompts"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decodes_and_prompts_alone(device, gpu_kernels, reference, lengths, kind, dtype):
    compare(build_case((8, 2, 64), lengths[kind], dtype=dtype), device, gpu_kernels, reference)


@pytest.mark.parametrize("block_size", [8, 32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_block_size(device, gpu_kernels, reference, lengths, block_size, dtype):
    case = build_case((8, 2, 64), lengths["mixed"], block_size=block_size, dtype=dtype)
    compare(case, device, gpu_kernels, reference)


@pytest.mark.parametrize("window", [1, 5, 100, SPLIT, SPLIT + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_windows(device, gpu_kernels, reference, lengths, window, dtype):
    case = build_case((8, 2, 64), lengths["mixed"], visible_from=window, dtype=dtype)
    compare(case, device, gpu_kernels, reference, sliding_window=window)


@pytest.mark.parametrize("window", [None, 33])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_soft_cap_and_sinks(device, gpu_kernels, reference, lengths, window, dim, dtype):
    case = build_case((4, 2, dim), lengths["mixed"], visible_from=window, dtype=dtype)
    sinks = torch.randn(4, generator=torch.Generator().manual_seed(1))
    compare(case, device, gpu_kernels, reference, sliding_window=window, soft_cap=1.5, sinks=sinks)


@pytest.mark.parametrize("dim", [64, 128])
def test_a_float8_cache_is_scaled_by_head(device, gpu_kernels, reference, lengths, dim):
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("this GPU has no float8_e4m3fn")
    case = build_case((8, 2, dim), lengths["mixed"], dtype=torch.bfloat16)
    stored = case.kv_cache.nan_to_num(nan=0.0).to(torch.float8_e4m3fn)
    scales = torch.tensor([[4.0, 2.0], [1.0, 0.25]])  # results stay below 2, as the bounds want
    compare(replace(case, kv_cache=stored), device, gpu_kernels, reference, kv_scales=scales)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(9, 3, 64), (32, 8, 128)], ids=str)
def test_a_row_does_not_depend_on_the_batch(device, gpu_kernels, lengths, heads, dtype):
    """Bit for bit: alone, and among others."""
    case = build_case(heads, lengths["mixed"], dtype=dtype)
    together = case.on(device).run(gpu_kernels)
    for index in range(len(case.batch.seq_lens_host)):
        alone = case.pick([index]).on(device).run(gpu_kernels)
        assert torch.equal(alone, together[case.rows(index)]), case.batch.seq_lens_host[index]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_prompt_may_be_cut_anywhere(device, gpu_kernels, interpreted, dtype):
    """Bit for bit. The interpreter's products, unlike a GPU's, depend on a row's place in the matrix."""
    case = build_case((9, 3, 64), [(70, 200)], dtype=dtype).on(device)
    whole = case.run(gpu_kernels)
    cuts = {torch.float32: [30]}.get(dtype, [42]) if interpreted else range(2, 69)
    for cut in cuts:
        late = replace(case, query=case.query[cut:], batch=_tail(case.batch, cut))
        assert torch.equal(late.run(gpu_kernels), whole[cut:]), cut


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
