"""How the router starts: its flags, its first four calls, and the checks on their answers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

# Exit statuses.
CHECK, WRONG_USAGE, PANIC = 1, 2, 101

# Tokens of a block as the second router counts them, by the variable ATTENTION.
_BLOCK_SIZES = {None: 16, "paged": 16, "flashinfer": 1, "flashdecoding": 256}


class StartRefusedError(Exception):
    """The router ends with this status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Flags:
    """The router's flags as far as they matter here, with its own defaults."""

    max_batch_prefill_tokens: int = 4096
    max_input_tokens: int | None = None
    max_total_tokens: int | None = None
    max_batch_total_tokens: int | None = None
    max_batch_size: int | None = None
    max_waiting_tokens: int = 20
    max_concurrent_requests: int = 128
    max_best_of: int = 2
    validation_workers: int = 2
    attention: str | None = None

    @classmethod
    def parse(cls, words: Sequence[str], environment: Mapping[str, str]) -> Flags:
        """Raises StartRefusedError."""
        values: dict[str, Any] = {"attention": environment.get("ATTENTION")}
        pairs = itertools.zip_longest(words[::2], words[1::2])
        for word, value in pairs:
            name = word.removeprefix("--").replace("-", "_")
            if name not in cls.__dataclass_fields__ or not str(value).isdigit():
                raise StartRefusedError(WRONG_USAGE, f"{word} {value}")
            values[name] = int(value)
        if values.get("validation_workers") == 0:
            raise StartRefusedError(CHECK, "validation_workers")
        return cls(**values)


@dataclass(frozen=True)
class Limits:
    """What the router goes by once it has started. Numbers of tokens."""

    prefill: int
    pool: int
    max_input: int
    max_total: int
    block_size: int
    chunking: bool
    padding: bool = False
    prefix_caching: bool = False
    window: int | None = None
    speculate: int = 0
    max_batch_size: int | None = None
    max_waiting_tokens: int = 20
    waiting_served_ratio: float = 1.2
    v2: bool = False


async def start(pb: Any, shard: Any, flags: Flags) -> Limits:
    """Raises StartRefusedError."""
    v2 = not hasattr(pb, "InputChunk")
    discovered = await shard.ServiceDiscovery(pb.ServiceDiscoveryRequest())
    assert discovered.urls
    await shard.ClearCache(pb.ClearCacheRequest())
    info = await shard.Info(pb.InfoRequest())
    answer = await shard.Warmup(_warmup_v2(pb, flags) if v2 else _warmup_v3(pb, flags))
    limits = _limits_v2(flags, info, answer) if v2 else _limits_v3(flags, info, answer)
    if limits.max_total > limits.pool:
        _refuse(f"the pool of {limits.pool} is below max_total_tokens, {limits.max_total}")
    if limits.max_input >= limits.max_total:
        _refuse(f"max_input_tokens, {limits.max_input}, is not below max_total_tokens, {limits.max_total}")
    if limits.max_input > limits.prefill and not limits.chunking:
        _refuse(f"max_input_tokens, {limits.max_input}, is above the prefill budget, {limits.prefill}")
    if limits.prefill > limits.pool:
        _refuse(f"the pool of {limits.pool} is below the prefill budget, {limits.prefill}")
    return limits


def _refuse(reason: str) -> NoReturn:
    raise StartRefusedError(CHECK, reason)


def _limits_v3(flags: Flags, info: Any, answer: Any) -> Limits:
    given = (
        (flags.max_input_tokens, answer.max_input_tokens),
        (flags.max_total_tokens, answer.max_total_tokens),
    )
    for asked, answered in given:
        if asked not in (None, answered):
            raise StartRefusedError(PANIC, f"{asked} was given, and the shard says {answered}")
    return Limits(
        prefill=flags.max_batch_prefill_tokens,
        pool=_pool(flags, answer, answer.max_total_tokens),
        max_input=answer.max_input_tokens,
        max_total=answer.max_total_tokens,
        block_size=info.block_size,
        chunking=info.support_chunking,
        padding=info.requires_padding,
        prefix_caching=info.use_prefix_caching,
        window=info.window_size if info.HasField("window_size") else None,
        speculate=info.speculate,
        max_batch_size=flags.max_batch_size,
        max_waiting_tokens=flags.max_waiting_tokens,
    )


def _limits_v2(flags: Flags, info: Any, answer: Any) -> Limits:
    max_input, max_total = _v2_limits(flags)
    if flags.attention not in _BLOCK_SIZES:
        raise StartRefusedError(PANIC, f"ATTENTION={flags.attention}")
    return Limits(
        prefill=flags.max_batch_prefill_tokens,
        pool=_pool(flags, answer, max_total),
        max_input=max_input,
        max_total=max_total,
        block_size=_BLOCK_SIZES[flags.attention],
        chunking=False,
        padding=info.requires_padding,
        speculate=info.speculate,
        max_batch_size=flags.max_batch_size,
        max_waiting_tokens=flags.max_waiting_tokens,
        v2=True,
    )


def _v2_limits(flags: Flags) -> tuple[int, int]:
    return flags.max_input_tokens or 1024, flags.max_total_tokens or 2048


def _pool(flags: Flags, answer: Any, max_total: int) -> int:
    if answer.HasField("max_supported_total_tokens"):
        return int(answer.max_supported_total_tokens)
    return flags.max_batch_total_tokens or max(16000, max_total, flags.max_batch_prefill_tokens)


def _warmup_v3(pb: Any, flags: Flags) -> Any:
    request = pb.WarmupRequest(
        max_prefill_tokens=flags.max_batch_prefill_tokens,
        max_input_tokens=flags.max_input_tokens,
        max_total_tokens=flags.max_total_tokens,
    )
    request.batch.max_tokens = flags.max_input_tokens or 0
    left = flags.max_batch_prefill_tokens
    while left > 0 and len(request.batch.requests) != flags.max_batch_size:
        truncate = min(left, flags.max_input_tokens or left)
        left -= truncate
        # A total below the piece wraps around, as 32 bits without a sign do.
        new = 1 if flags.max_total_tokens is None else (flags.max_total_tokens - truncate) % 2**32
        text = "_test " * truncate
        entry = request.batch.requests.add(truncate=truncate, inputs=text, add_special_tokens=True)
        entry.input_chunks.chunks.add(text=text)
        if len(request.batch.requests) == 1:
            entry.inputs += "![](data:image/jpeg;base64,iVBORw0KGgo=)"
            image = entry.input_chunks.chunks.add().image
            image.data, image.mimetype = b"\x89PNG\r\n\x1a\n", "image/jpeg;base64"
        _make_hard(entry, new)
    request.batch.size = len(request.batch.requests)
    return request


def _warmup_v2(pb: Any, flags: Flags) -> Any:
    max_input, max_total = _v2_limits(flags)
    budget = flags.max_batch_prefill_tokens
    request = pb.WarmupRequest(
        max_prefill_tokens=budget, max_input_length=max_input, max_total_tokens=max_total
    )
    for done in range(0, budget, max_input):
        truncate = min(max_input, budget - done)
        entry = request.batch.requests.add(truncate=truncate, inputs="_test " * max_input)
        _make_hard(entry, max_total - truncate)
        if len(request.batch.requests) == flags.max_batch_size:
            break
    request.batch.size = len(request.batch.requests)
    return request


def _make_hard(entry: Any, new: int) -> None:
    """Everything that costs memory, at once."""
    parameters = entry.parameters
    parameters.temperature = parameters.top_p = parameters.typical_p = 0.9
    parameters.top_k, parameters.repetition_penalty, parameters.frequency_penalty = 10, 1.2, 0.1
    parameters.watermark = True
    entry.stopping_parameters.max_new_tokens = new
    entry.stopping_parameters.ignore_eos_token = True
    entry.prefill_logprobs, entry.top_n_tokens = True, 20
