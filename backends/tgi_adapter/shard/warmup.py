"""The limits that router and shard agree on when the router starts."""

from __future__ import annotations

from dataclasses import dataclass

from pageport.backends.tgi_adapter.shard.settings import ShardSettings
from pageport.core import ConfigError, EngineInfo


@dataclass(frozen=True, slots=True)
class WarmupLimits:
    """What the router was told; None: the choice is ours. In tokens.

    Attributes:
        max_prefill_tokens: prompts that start in one call, together.
        max_input_tokens, max_total_tokens: of one request.
    """

    max_prefill_tokens: int
    max_input_tokens: int | None
    max_total_tokens: int | None


@dataclass(frozen=True, slots=True)
class WarmupAnswer:
    """What the router may send from now on, in tokens.

    Attributes:
        supported_tokens: all requests that run, each with its prompt and its longest answer.
    """

    supported_tokens: int
    max_input_tokens: int
    max_total_tokens: int


def supported_tokens(info: EngineInfo, settings: ShardSettings) -> int:
    """Each rank has an engine of its own, and serves its share of the requests."""
    return int(info.kv_token_capacity * settings.overcommit) * settings.world_size


def agree(limits: WarmupLimits, info: EngineInfo, settings: ShardSettings) -> WarmupAnswer:
    """Limits that were given are answered as they are: the router ends where they are not.

    Raises:
        ConfigError: they cannot be kept, with both numbers.
    """
    supported = supported_tokens(info, settings)
    if limits.max_prefill_tokens > supported:
        raise ConfigError(
            f"--max-batch-prefill-tokens: {limits.max_prefill_tokens} is more than the {supported} tokens that the KV "
            "cache is good for; give a smaller one, or more memory by PAGEPORT_KV_CACHE_MEMORY_BYTES"
        )
    total = limits.max_total_tokens or min(info.max_model_len, supported)
    if total > info.max_model_len:
        raise ConfigError(
            f"--max-total-tokens: {total} is more than the {info.max_model_len} tokens that one request may have with "
            f"this model and its KV cache of {info.kv_token_capacity}"
        )
    return WarmupAnswer(supported, _max_input(limits, total, settings), total)


def _max_input(limits: WarmupLimits, total: int, settings: ShardSettings) -> int:
    longest = total - 1
    # Without chunking a prompt has to fit into one call.
    fits = longest if settings.support_chunking else min(longest, limits.max_prefill_tokens)
    given = limits.max_input_tokens
    if given is None:
        return fits
    if given > longest:
        raise ConfigError(f"--max-input-tokens: {given} must be below --max-total-tokens, {total}")
    if given > fits:
        raise ConfigError(
            f"--max-input-tokens: {given} is more than --max-batch-prefill-tokens, {fits}, and chunking is off"
        )
    return given
