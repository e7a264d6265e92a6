"""The load: prompts and answers of mixed lengths, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pageport.migration.poc.corpus import QUESTIONS, SENTENCES


class Encoding(Protocol):
    @property
    def ids(self) -> list[int]: ...


class Tokenizer(Protocol):
    """What is needed of `tokenizers.Tokenizer`."""

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Encoding: ...

    def decode(self, ids: Sequence[int], /) -> str: ...


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request of the load.

    Attributes:
        index: its place in the load.
        prompt_tokens: length of `prompt` as the model's tokenizer counts it.
        output_tokens: exact length of the answer.
    """

    index: int
    prompt: str
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class LengthRange:
    """A log-normal distribution of lengths in tokens, clipped to `low`..`high`."""

    mean: float
    low: int
    high: int
    sigma: float = 0.8


def draw_lengths(count: int, lengths: LengthRange, rng: random.Random) -> list[int]:
    """Draw log-normal lengths and shift them, one by one, until their sum is `round(mean * count)`.

    Raises:
        ValueError: no lengths within the range have that sum.
    """
    total = round(lengths.mean * count)
    if not lengths.low * count <= total <= lengths.high * count:
        raise ValueError(f"{count} lengths in {lengths.low}..{lengths.high} cannot sum to {total}")
    raw = [rng.lognormvariate(0.0, lengths.sigma) for _ in range(count)]
    drawn = [_clip(round(x * total / sum(raw)), lengths) for x in raw]
    missing = total - sum(drawn)
    step = 1 if missing > 0 else -1
    while missing:
        index = rng.randrange(count)
        if lengths.low <= drawn[index] + step <= lengths.high:
            drawn[index] += step
            missing -= step
    return drawn


def _clip(value: int, lengths: LengthRange) -> int:
    return min(max(value, lengths.low), lengths.high)


def make_prompt_ids(tokens: int, tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """Exactly `tokens` ids of natural text: a question and sentences in random order.

    Every prompt is ordered anew, so that no two share more than their question.
    """
    text = f"{rng.choice(QUESTIONS)}\n\n{rng.choice(SENTENCES)}"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    while len(ids) < tokens:
        text += " " + " ".join(rng.sample(SENTENCES, len(SENTENCES)))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    return ids[:tokens]


def build_load(
    count: int, prompts: LengthRange, outputs: LengthRange, tokenizer: Tokenizer, seed: int
) -> list[LoadRequest]:
    """The same load for the same arguments, on every machine."""
    rng = random.Random(seed)
    prompt_lengths = draw_lengths(count, prompts, rng)
    output_lengths = draw_lengths(count, outputs, rng)
    load: list[LoadRequest] = []
    for prompt_length, output_length in zip(prompt_lengths, output_lengths, strict=True):
        prompt = tokenizer.decode(make_prompt_ids(prompt_length, tokenizer, rng))
        real_length = len(tokenizer.encode(prompt, add_special_tokens=False).ids)
        load.append(LoadRequest(len(load), prompt, real_length, output_length))
    return load
