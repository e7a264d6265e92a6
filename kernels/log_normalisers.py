"""What turns rows of logits into log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch


class LogNormalisers(NamedTuple):
    """Of each row: its largest logit, and log(sum(exp(logit - largest))); float32 [N] both."""

    peaks: torch.Tensor
    log_totals: torch.Tensor

    def logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """Some logits of each row [N, K] as log-probabilities, in the order of operations of `log_softmax`."""
        return logits - self.peaks[:, None] - self.log_totals[:, None]


def log_normalisers(logits: torch.Tensor) -> LogNormalisers:
    """Read each row twice and write nothing: on the CPU a third of the time of `log_softmax`.

    A row's result does not depend on the other rows.

    Args:
        logits: float32 [N, V], dense rows, each with a finite largest logit and no NaN.
    """
    compiled = _compiled() if logits.device.type == "cpu" and logits.stride(-1) == 1 else None
    if compiled is not None:
        return LogNormalisers(*compiled(logits))
    peaks = logits.amax(dim=-1)
    return LogNormalisers(peaks, (logits - peaks[:, None]).exp().sum(dim=-1).log())


@cache
def _compiled() -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None:
    """The CPU's kernel; None without Numba."""
    try:
        from pageport.kernels.cpu.compile_cache import use_compile_cache
        from pageport.kernels.cpu.normalisers import normalisers
    except ImportError:
        return None
    use_compile_cache()
    return normalisers
