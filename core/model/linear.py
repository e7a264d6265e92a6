"""Linear layers whose rows do not depend on how many rows there are."""

from __future__ import annotations

from functools import cache
from typing import Protocol

import torch
from torch.nn import functional

from pageport.kernels.packed_matrix import pack_matrix, pack_quantised
from pageport.kernels.quantised import QuantisedWeight

# Single rows were compared bitwise with rows of a batch: equal up to K 1,024, different at 1,536, 2,048 and 4,096.
_LONGEST_PLAIN_ROW = 1024


class Linear:
    """`x @ weight.T + bias`, by the fastest way that there is for the weight.

    On the CPU a bfloat16 weight is packed for our own kernel (`kernels.packed_matrix`), where that can be; other
    weights are packed once into oneDNN's own layout, see `_OneDnnProduct`. All else is torch's plain product.
    """

    def __init__(self, weight: torch.Tensor | QuantisedWeight, bias: torch.Tensor | None = None) -> None:
        """Take over `weight` [N, K] and `bias` [N]; the caller drops its own references.

        A quantised weight for which there is no kernel is dequantised to bfloat16.
        """
        self._product = _choose(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] -> [M, N]."""
        return self._product.multiply(x)

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        """As a call, the results in float32; they have been rounded to the weight's type."""
        return self._product.multiply(x, wide=True)


class _Product(Protocol):
    def multiply(self, x: torch.Tensor, *, wide: bool = False) -> torch.Tensor: ...


def _choose(weight: torch.Tensor | QuantisedWeight, bias: torch.Tensor | None) -> _Product:
    if isinstance(weight, QuantisedWeight):
        return pack_quantised(weight, bias) or _choose(weight.dequantise().bfloat16(), bias)
    packed = pack_matrix(weight, bias)
    if packed is not None:
        return packed
    if weight.device.type == "cpu" and _has_onednn() and _onednn_computes(weight.dtype):
        return _OneDnnProduct(weight, bias)
    return _PlainProduct(weight, bias)


class _PlainProduct:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def multiply(self, x: torch.Tensor, *, wide: bool = False) -> torch.Tensor:
        y = functional.linear(x, self._weight, self._bias)
        return y.float() if wide else y


class _OneDnnProduct:
    """A weight in oneDNN's own layout.

    Two reasons, both measured on two cores of a Zen 4 (torch 2.13, shapes of a 135M Llama): it halves the time of small
    batches (bf16, K 576, N 49,152: one row 3.2 to 1.4 ms), and each row's result is bitwise the same for 1 to 512 rows,
    where torch's float32 product gives three different results for 1, for 2 to 3 and for more rows. One exception:
    a single row with K above 1,024 sums in another order, so it is computed as two (13 of 81 us at K 1,536).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._bias = bias
        self._doubles_one_row = int(weight.shape[1]) > _LONGEST_PLAIN_ROW
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)

    def multiply(self, x: torch.Tensor, *, wide: bool = False) -> torch.Tensor:
        if self._doubles_one_row and x.shape[0] == 1:
            y = self._multiply(x.expand(2, -1).contiguous())[:1]
        else:
            y = self._multiply(x)
        return y.float() if wide else y

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


@cache
def _has_onednn() -> bool:
    """The packing operations are private to torch and may be missing in another build."""
    return (
        torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def _onednn_computes(dtype: torch.dtype) -> bool:
    """bfloat16 only where the processor has AVX-512 or better."""
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype is torch.float32
