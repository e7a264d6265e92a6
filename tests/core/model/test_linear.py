import pytest
import torch

from pageport.core.model.linear import Linear

ROWS = [1, 2, 3, 7, 8, 16, 17, 33, 64, 200]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("inputs", "outputs"), [(576, 960), (1536, 576), (40, 24)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_torch_and_a_row_does_not_depend_on_the_others(
    dtype: torch.dtype, inputs: int, outputs: int, with_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(inputs)
    weight = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
    bias = torch.randn(outputs, generator=generator) if with_bias else None
    x = torch.randn(max(ROWS), inputs, generator=generator).to(dtype)
    layer = Linear(weight.to(dtype), None if bias is None else bias.to(dtype))
    whole = layer(x)
    exact = torch.nn.functional.linear(
        x.double(), weight.to(dtype).double(), None if bias is None else bias.to(dtype).double()
    )
    # float32: rounding of sums; bfloat16: products are exact, the result is rounded to 8 bits.
    bounds = {"rtol": 1e-4, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2**-7, "atol": 2**-7}
    torch.testing.assert_close(whole.double(), exact, **bounds)
    assert torch.equal(layer.wide(x), whole.float())
    for rows in ROWS:
        assert torch.equal(layer(x[:rows]), whole[:rows]), f"{rows} rows"
