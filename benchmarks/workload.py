"""The mixed workload that the benchmarks share: token ids, lengths, and an exact number of tokens in all."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from pageport.migration.poc.workload import LengthRange, draw_lengths, make_prompt_ids

# 64 requests: 10,919 prompt tokens and 9,548 output tokens.
PROMPTS = LengthRange(mean=10_919 / 64, low=16, high=1024)
OUTPUTS = LengthRange(mean=9_548 / 64, low=20, high=512)


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt and the exact length of its answer."""

    prompt: tuple[int, ...]
    output_tokens: int


def mixed_workload(model: Path, requests: int, seed: int = 1234) -> list[Job]:
    """Log-normal lengths, sigma 0.8; any number of requests keeps the means of the full workload."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    rng = random.Random(seed)
    prompts = draw_lengths(requests, PROMPTS, rng)
    outputs = draw_lengths(requests, OUTPUTS, rng)
    return [
        Job(tuple(make_prompt_ids(prompt, tokenizer, rng)), output)
        for prompt, output in zip(prompts, outputs, strict=True)
    ]


def describe(jobs: list[Job]) -> str:
    prompts = [len(job.prompt) for job in jobs]
    outputs = [job.output_tokens for job in jobs]
    return (
        f"{len(jobs)} requests, {sum(prompts):,} prompt tokens ({min(prompts)}–{max(prompts)}), "
        f"exactly {sum(outputs):,} output tokens ({min(outputs)}–{max(outputs)})"
    )
