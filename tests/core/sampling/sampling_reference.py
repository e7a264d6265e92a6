"""The slow, obvious sampler: one row, one token, Python and float64."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import torch

from pageport.core.sampling import SamplingState
from pageport.core.sampling.random import uniforms
from pageport.core.sampling_params import PenaltyStyle

CLOSE = 1e-5  # the sampler works from float32 logits


class TooCloseError(Exception):
    """A comparison so close to a tie that rounding decides it."""


def _less(a: float, b: float) -> bool:
    if abs(a - b) < CLOSE * max(abs(a), abs(b)):
        raise TooCloseError
    return a < b


def adjusted_logits(logits: npt.NDArray[np.float32], state: SamplingState) -> npt.NDArray[np.float32]:
    """Bans, bias, watermark and penalties, one token at a time, in float32 as the model's logits."""
    params, output = state.params, state.output_token_ids
    result = logits.copy()
    for word in state.bad_words_ids:
        before = list(word[:-1])
        if output[len(output) - len(before) :] == before and len(output) >= len(before):
            result[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        for token in (*state.eos_token_ids, *params.stop_token_ids):
            result[token] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        result[token] += np.float32(bias)
    if params.watermark is not None:
        generator = torch.Generator().manual_seed(15485863 * [*state.prompt_token_ids, *output][-1])
        order = torch.randperm(len(logits), generator=generator).tolist()
        for token in order[: int(len(logits) * params.watermark.gamma)]:
            result[token] += np.float32(params.watermark.delta)
    shares = params.penalty_style is PenaltyStyle.SHARE
    counts = Counter([*state.prompt_token_ids, *output] if shares else output)
    length = len(state.prompt_token_ids) + len(output) if shares else 1
    for token in {*state.prompt_token_ids, *output}:
        penalty = np.float32(params.repetition_penalty)
        result[token] = result[token] / penalty if result[token] > 0 else result[token] * penalty
        result[token] -= np.float32(params.frequency_penalty / length) * np.float32(counts[token])
        result[token] -= np.float32(params.presence_penalty) * np.float32(counts[token] > 0)
    return result


def remaining_tokens(logits: npt.NDArray[np.float32], state: SamplingState) -> list[tuple[int, float]]:
    """Token ids that may be drawn and their unnormalised probabilities, in the order of drawing."""
    params = state.params
    scaled = (logits.astype(np.float64) - float(logits.max())) / params.temperature
    tokens = [(token, math.exp(value)) for token, value in enumerate(scaled.tolist()) if value > -np.inf]
    if params.top_k <= 0 and params.top_p == 1 and params.min_p == 0 and params.typical_p == 1:
        return tokens
    tokens.sort(key=lambda entry: (-float(logits[entry[0]]), entry[0]))
    if params.min_p > 0:
        tokens = [entry for entry in tokens if entry[1] == 1.0 or not _less(entry[1], params.min_p)]
    if params.top_k == 1:
        tokens = tokens[:1]
    elif params.top_k > 1:
        kth = logits[tokens[min(params.top_k, len(tokens)) - 1][0]]
        tokens = [entry for entry in tokens if logits[entry[0]] >= kth]
    if params.top_p < 1:
        total, counted, kept = sum(weight for _, weight in tokens), 0.0, []
        for entry in tokens:
            if counted > 0 and not _less(counted, params.top_p * total):
                break
            kept.append(entry)
            counted += entry[1]
        tokens = kept
    if params.typical_p < 1:
        tokens = _typical(tokens, params.typical_p)
    return tokens


def _typical(tokens: list[tuple[int, float]], typical_p: float) -> list[tuple[int, float]]:
    total = sum(weight for _, weight in tokens)
    probabilities = {token: weight / total for token, weight in tokens if weight > 0}
    entropy = -sum(p * math.log(p) for p in probabilities.values())
    distances = {token: abs(-math.log(p) - entropy) for token, p in probabilities.items()}
    counted = 0.0
    limit = max(distances.values())
    for token in sorted(distances, key=distances.__getitem__):
        counted += probabilities[token]
        if not _less(counted, typical_p):
            limit = distances[token]
            break
    for token, distance in distances.items():
        if distance != limit and abs(distance - limit) < CLOSE and probabilities[token] > 0:
            raise TooCloseError
    return [entry for entry in tokens if distances.get(entry[0], math.inf) <= limit]


def processed_logprobs(logits: npt.NDArray[np.float32], state: SamplingState) -> dict[int, float]:
    """Log-probabilities of all possible tokens after everything. Raises TooCloseError where rounding would decide."""
    logits = adjusted_logits(logits, state)
    if state.params.temperature == 0:
        wide = logits.astype(np.float64)
        weights = dict(enumerate(np.exp(wide - wide.max()).tolist()))
    else:
        weights = dict(remaining_tokens(logits, state))
    total = sum(weights.values())
    return {token: math.log(weight / total) for token, weight in weights.items() if weight > 0}


def next_token(logits: npt.NDArray[np.float32], state: SamplingState) -> int:
    """The token that the sampler must choose. Raises TooCloseError where rounding would decide."""
    logits = adjusted_logits(logits, state)
    if state.params.temperature == 0:
        return int(logits.argmax())
    tokens = remaining_tokens(logits, state)
    index = len(state.output_token_ids)
    uniform = uniforms(np.array([state.seed], dtype=np.uint64), np.array([index], dtype=np.uint64))[0]
    target = uniform * sum(weight for _, weight in tokens)
    counted = 0.0
    for token, weight in tokens:
        counted += weight
        if _less(target, counted):
            return token
    raise TooCloseError
