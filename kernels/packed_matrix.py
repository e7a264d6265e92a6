"""Weight matrices in the layout of the CPU's own product kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pageport.kernels.quantised import QuantisedWeight

if TYPE_CHECKING:
    from pageport.kernels.cpu.matmul import PackedMatrix
    from pageport.kernels.cpu.quantised_matmul import QuantisedMatrix


def pack_matrix(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedMatrix | None:
    """Pack `weight` [N, K] with its `bias` [N]; None without Numba, or where processor or shape do not suit."""
    if weight.device.type != "cpu":
        return None
    try:
        from pageport.kernels.cpu.compile_cache import use_compile_cache
        from pageport.kernels.cpu.matmul import PackedMatrix, can_pack
    except ImportError:
        return None
    if not can_pack(weight):
        return None
    use_compile_cache()
    return PackedMatrix(weight, bias)


def pack_quantised(weight: QuantisedWeight, bias: torch.Tensor | None) -> QuantisedMatrix | None:
    """As `pack_matrix`, for a weight that stays quantised."""
    try:
        from pageport.kernels.cpu.compile_cache import use_compile_cache
        from pageport.kernels.cpu.quantised_matmul import QuantisedMatrix, can_pack
    except ImportError:
        return None
    if not can_pack(weight):
        return None
    use_compile_cache()
    return QuantisedMatrix(weight, bias)
