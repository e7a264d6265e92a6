"""Milliseconds a call of the sampler, by batch size and by what the rows ask for.

    python benchmarks/sampler.py

"peaked" rows resemble a language model that is fairly sure (most of the probability on some dozens of
tokens); "flat" rows one that has no idea (a nucleus of thousands of tokens: the slow route).
"""

from __future__ import annotations

import time
from typing import Any

import torch

from pageport.core.sampling import Sampler, SamplingState
from pageport.core.sampling_params import SamplingParams

VOCAB_SIZE = 49152
BATCH_SIZES = (1, 8, 64)
CALLS = 15
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50": {"top_k": 50},
    "min_p 0.05": {"min_p": 0.05},
    "typical_p 0.9": {"typical_p": 0.9},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
    "logprobs 5": {"temperature": 0.0, "logprobs": 5},
}


def make_logits(num_rows: int, peaked: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    logits = torch.randn(num_rows, VOCAB_SIZE, generator=generator) * 2.5
    if peaked:
        head = torch.randint(VOCAB_SIZE, (num_rows, 200), generator=generator)
        logits.scatter_add_(1, head, 14 * torch.exp(-torch.arange(200) / 60).expand(num_rows, -1))
    return logits


def milliseconds(num_rows: int, peaked: bool, parameters: dict[str, Any]) -> float:
    sampler = Sampler(torch.device("cpu"))
    states = [
        SamplingState(SamplingParams(**parameters), seed, range(500), list(range(300, 600)), (2,))
        for seed in range(num_rows)
    ]
    original = make_logits(num_rows, peaked)
    times = []
    for _ in range(CALLS + 1):
        logits = original.clone()
        start = time.perf_counter()
        sampled = sampler.sample(logits, states)
        times.append(time.perf_counter() - start)
        for state, token in zip(states, sampled.token_ids, strict=True):
            state.output_token_ids.append(token)
    return min(times[1:]) * 1e3


def main() -> None:
    print(f"{VOCAB_SIZE} tokens, {torch.get_num_threads()} threads; best of {CALLS} calls, ms")
    print(f"{'':24}" + "".join(f"R={num_rows:<8}" for num_rows in BATCH_SIZES))
    for shape in ("peaked", "flat"):
        for name, parameters in CASES.items():
            figures = [milliseconds(num_rows, shape == "peaked", parameters) for num_rows in BATCH_SIZES]
            print(f"{shape + ', ' + name:24}" + "".join(f"{figure:<10.2f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
