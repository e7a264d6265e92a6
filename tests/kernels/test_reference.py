"""The reference against truths of its own: torch's attention without paging, and sums written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

HEADS = [(9, 3, 64), (8, 1, 80), (2, 2, 128)]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("block_size", [8, 16, 32])
def test_attention_equals_torchs_on_a_contiguous_cache(case_of, reference, heads, block_size):
    lengths = [(1, 1), (1, block_size), (1, 100), (7, 7), (20, 33), (5, 2 * block_size)]
    case = case_of(heads, lengths, block_size=block_size)
    actual = case.run(reference)
    for index, (new, total) in enumerate(
        zip(case.batch.query_lens_host, case.batch.seq_lens_host, strict=True)
    ):
        rows = case.rows(index)
        mask = torch.ones(new, total, dtype=torch.bool).tril(total - new)
        expected = functional.scaled_dot_product_attention(
            case.query[rows].double().transpose(0, 1),
            case.keys[index].double().transpose(0, 1),
            case.values[index].double().transpose(0, 1),
            attn_mask=mask,
            enable_gqa=True,
        ).transpose(0, 1)
        torch.testing.assert_close(actual[rows], expected.float(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(("window", "soft_cap"), [(1, None), (3, None), (None, 2.0), (10, 0.5)])
def test_window_and_soft_cap_equal_the_formula_written_out(case_of, reference, window, soft_cap):
    case = case_of((4, 2, 8), [(1, 9), (6, 14)], block_size=4, visible_from=window)
    actual = case.run(reference, sliding_window=window, soft_cap=soft_cap)
    for index in range(2):
        new, total = case.batch.query_lens_host[index], case.batch.seq_lens_host[index]
        for row in range(new):
            own = total - new + row
            visible = [t for t in range(own + 1) if window is None or own - t < window]
            for head in range(4):
                query = case.query[case.rows(index)][row, head]
                logits = [float(query @ case.keys[index][t, head // 2]) * case.scale for t in visible]
                if soft_cap is not None:
                    logits = [soft_cap * math.tanh(x / soft_cap) for x in logits]
                weights = [math.exp(x) for x in logits]
                expected = sum(
                    w * case.values[index][t, head // 2] for w, t in zip(weights, visible, strict=True)
                ) / sum(weights)
                torch.testing.assert_close(
                    actual[case.rows(index)][row, head], expected, rtol=1e-5, atol=2e-6
                )


def test_half_precision_is_accumulated_in_float32(reference):
    x = torch.full((1, 4096), 1.0, dtype=torch.float16) * 100  # the squares' sum is past float16's range
    torch.testing.assert_close(
        reference.rms_norm(x, torch.ones(4096, dtype=torch.float16), 0.0), torch.ones_like(x)
    )
