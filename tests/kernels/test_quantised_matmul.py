"""Products with 4- and 8-bit weights against float64, and the independence of rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.core.model.linear import Linear
from pageport.kernels.packed_matrix import pack_quantised
from pageport.kernels.quantised import GROUP, QuantisedWeight, concatenate

needs_instructions = pytest.mark.skipif(
    not torch.cpu.get_capabilities().get("avx512_bf16"), reason="the processor has no AVX512-BF16"
)


def random_weight(rows: int, width: int, bits: int, seed: int) -> QuantisedWeight:
    generator = torch.Generator().manual_seed(seed)
    low, high = (0, 16) if bits == 4 else (-127, 128)
    codes = torch.randint(low, high, (rows, width), generator=generator).to(torch.int8)
    scales = torch.rand(rows, width // GROUP, generator=generator) * 0.02 + 1e-4
    minima = torch.randn(rows, width // GROUP, generator=generator) * 0.05
    return QuantisedWeight(bits, codes, scales.half(), minima.half())


def assert_close(
    found: torch.Tensor, x: torch.Tensor, weight: QuantisedWeight, bias: torch.Tensor | None
) -> None:
    """Within half a step of bfloat16, and a share of the terms' sizes for rounding of float32 sums."""
    dense = weight.dequantise().double()
    exact = x.double() @ dense.T + (0 if bias is None else bias.double())
    sizes = x.double().abs() @ dense.abs().T
    assert ((found.double() - exact).abs() <= exact.abs() * 2**-8 + sizes * 1e-6 + 1e-30).all()


@needs_instructions
@settings(deadline=None, max_examples=40)
@given(
    bits=st.sampled_from([4, 8]),
    stripes=st.integers(1, 5),
    groups=st.integers(1, 9),
    rows=st.integers(1, 40),
    with_bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_as_the_dequantised_weight(
    bits: int, stripes: int, groups: int, rows: int, with_bias: bool, seed: int
) -> None:
    weight = random_weight(64 * stripes, GROUP * groups, bits, seed)
    generator = torch.Generator().manual_seed(seed)
    bias = torch.randn(64 * stripes, generator=generator) if with_bias else None
    x = torch.randn(rows, GROUP * groups, generator=generator).bfloat16()
    layer = Linear(weight, bias)
    found = layer.wide(x)
    assert_close(found, x, weight, bias)
    assert torch.equal(layer(x).float(), found)


@needs_instructions
@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_does_not_depend_on_the_others(bits: int) -> None:
    weight = random_weight(320, 576, bits, seed=7)
    layer = Linear(weight)
    x = torch.randn(400, 576, generator=torch.Generator().manual_seed(8)).bfloat16()
    whole = layer(x)
    for rows in [1, 2, 3, 5, 6, 7, 12, 13, 64, 191, 192, 193, 399]:
        assert torch.equal(layer(x[:rows]), whole[:rows]), f"{rows} rows"
        assert torch.equal(layer(x[-rows:]), whole[-rows:]), f"the last {rows} rows"


@needs_instructions
@pytest.mark.parametrize("bits", [4, 8])
def test_every_code_stands_for_itself(bits: int) -> None:
    codes = torch.arange(0, 16) if bits == 4 else torch.arange(-127, 128)
    width = GROUP * 8
    padded = torch.zeros(64, width, dtype=torch.int8)
    padded[5, : len(codes)] = codes.to(torch.int8)
    ones, zeros = torch.ones(64, 8).half(), torch.zeros(64, 8).half()
    layer = Linear(QuantisedWeight(bits, padded, ones, zeros))
    found = layer(torch.eye(width).bfloat16())
    expected = torch.zeros(width, 64)
    expected[: len(codes), 5] = codes.float()
    assert torch.equal(found.float(), expected)


def test_what_the_kernel_cannot_do_is_dequantised() -> None:
    lowest = random_weight(64, 64, 8, seed=1)
    lowest.codes[3, 3] = -128
    odd = random_weight(65, 64, 4, seed=2)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    for weight in (lowest, odd):
        assert pack_quantised(weight, None) is None
        dense = weight.dequantise().bfloat16().double()
        torch.testing.assert_close(Linear(weight)(x).double(), x.double() @ dense.T, rtol=2**-7, atol=2**-7)


def test_weights_of_one_kind_are_put_together() -> None:
    narrow, other = (random_weight(64, 64, 4, seed) for seed in (1, 2))
    joined = concatenate([narrow, other])
    assert isinstance(joined, QuantisedWeight)
    assert torch.equal(joined.dequantise(), torch.cat([narrow.dequantise(), other.dequantise()]))
    assert concatenate([narrow, random_weight(64, 64, 8, seed=3)]) is None
    assert concatenate([narrow, torch.ones(64, 64)]) is None
