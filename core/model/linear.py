"""Linear layers whose rows do not depend on how many rows there are."""

from __future__ import annotations

import torch
from torch.nn import functional

# Single rows were compared bitwise with rows of a batch: equal up to K 1,024, different at 1,536, 2,048 and 4,096.
_LONGEST_PLAIN_ROW = 1024


class Linear:
    """`x @ weight.T + bias`.

    On the CPU in float32 and bfloat16 the weight is packed once into oneDNN's own layout. Two reasons, both
    measured on two cores of a Zen 4 (torch 2.13, shapes of a 135M Llama): it halves the time of small batches
    (bf16, K 576, N 49,152: one row 3.2 to 1.4 ms), and each row's result is bitwise the same for 1 to 512 rows, where
    torch's float32 product gives three different results for 1, for 2 to 3 and for more rows. One exception:
    a single row with K above 1,024 sums in another order, so it is computed as two (13 of 81 us at K 1,536).
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Take over `weight` [N, K] and `bias` [N]; the caller drops its own references."""
        self._bias = bias
        self._packed = _can_pack(weight)
        self._doubles_one_row = self._packed and int(weight.shape[1]) > _LONGEST_PLAIN_ROW
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] -> [M, N]."""
        if not self._packed:
            return functional.linear(x, self._weight, self._bias)
        if self._doubles_one_row and x.shape[0] == 1:
            return self._multiply(x.expand(2, -1).contiguous())[:1]
        return self._multiply(x)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


def _can_pack(weight: torch.Tensor) -> bool:
    """The packing operations are private to torch and may be missing in another build."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and torch._C._has_mkldnn
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
