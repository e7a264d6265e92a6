"""Make a new engine's first request as fast as its second: run every path once before it counts."""

from __future__ import annotations

import time

from pageport.core.engine import Engine
from pageport.core.request import EngineRequest
from pageport.core.sampling_params import SamplingParams


def warm_up(engine: Engine) -> None:
    """Generate a few tokens, so that kernels are compiled or loaded and weights packed.

    One prompt and two sequences exercise prefill, fork, copy-on-write, decode and sampling.
    """
    length = min(4, engine.info.max_model_len - 3)
    if length < 1:
        return
    sequences = min(2, engine.info.max_num_seqs)
    params = SamplingParams(n=sequences, max_tokens=2, temperature=1.0, top_p=0.9, ignore_eos=True)
    engine.add_request(EngineRequest("warm-up", (0,) * length, params, arrival_time=time.monotonic()))
    while engine.has_work:
        engine.step()
    engine.reset_stats()
