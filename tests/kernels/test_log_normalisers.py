"""Log-probabilities without a copy of the logits, against torch in float64."""

from __future__ import annotations

import pytest
import torch

from pageport.kernels import log_normalisers as module
from pageport.kernels.log_normalisers import log_normalisers


@pytest.fixture(params=["compiled", "torch"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(module, "_compiled", lambda: None)
    else:
        assert module._compiled() is not None
    return str(request.param)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 63), (3, 64), (5, 1000), (64, 49_152)])
def test_as_log_softmax(implementation: str, rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(rows * width)
    logits = torch.randn(rows, width, generator=generator) * 8 + 20
    expected = logits.double().log_softmax(dim=-1)
    found = log_normalisers(logits)
    assert torch.equal(found.peaks, logits.amax(dim=-1))
    torch.testing.assert_close(found.logprobs(logits).double(), expected, rtol=0, atol=2e-5)


def test_impossible_tokens_have_no_share(implementation: str) -> None:
    logits = torch.full((2, 500), -torch.inf)
    logits[0, 17] = -3.0
    logits[1, [3, 499]] = 1.5
    logprobs = log_normalisers(logits).logprobs(logits)
    assert logprobs[0, 17] == 0
    torch.testing.assert_close(logprobs[1, [3, 499]], torch.tensor([0.5, 0.5]).log())
    assert (logprobs == -torch.inf).sum() == 997


def test_a_row_does_not_depend_on_the_others() -> None:
    logits = torch.randn(70, 5000, generator=torch.Generator().manual_seed(1))
    together = log_normalisers(logits)
    for row in (0, 33, 69):
        alone = log_normalisers(logits[row : row + 1])
        assert torch.equal(alone.log_totals[0], together.log_totals[row])


def test_rows_may_be_part_of_wider_ones() -> None:
    wide = torch.randn(4, 300, generator=torch.Generator().manual_seed(2))
    part = log_normalisers(wide[:, 100:200])
    whole = log_normalisers(wide[:, 100:200].contiguous())
    assert torch.equal(part.log_totals, whole.log_totals)
