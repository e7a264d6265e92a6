"""What a shard was told: by the launcher's command line, by the launcher's environment, and by our own variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pageport.core import ConfigError, EngineConfig, Watermark

# The launcher leaves the limit to us where nobody set one; TGI's own default without a GPU.
DEFAULT_PREFILL_BUDGET = 4096

_ENGINE_FIELDS = frozenset(item.name for item in dataclasses.fields(EngineConfig)) - {"model", "tokenizer"}
_PREFIX = "PAGEPORT_"


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How the shard answers the router.

    Attributes:
        uds_path: prefix of the sockets; rank r listens on `<uds_path>-<r>`.
        support_chunking: the router hands over new requests together with the running batch, and prompts in pieces.
        overcommit: the router is promised so many times the token slots that there are; the engine preempts where TGI
            could only reserve. 1 promises what there is.
        prefill_logprobs: prompts' log-probabilities are given to those who ask.
    """

    uds_path: str
    rank: int = 0
    world_size: int = 1
    support_chunking: bool = True
    overcommit: float = 1.0
    prefill_logprobs: bool = False
    watermark: Watermark = field(default_factory=Watermark)

    @property
    def socket_path(self) -> str:
        return f"{self.uds_path}-{self.rank}"

    @property
    def urls(self) -> list[str]:
        """Where the ranks listen."""
        return [f"unix://{self.uds_path}-{rank}" for rank in range(self.world_size)]


def read_shard_settings(uds_path: str, environment: Mapping[str, str]) -> ShardSettings:
    """From the variables that the launcher sets, and ours.

    Raises:
        ConfigError: naming the variable and its value.
    """
    overcommit = _number(environment, "PAGEPORT_OVERCOMMIT", 1.0)
    if not 1.0 <= overcommit <= 100.0:
        raise ConfigError(f"PAGEPORT_OVERCOMMIT: must be from 1 to 100 (given: {overcommit})")
    gamma = _number(environment, "WATERMARK_GAMMA", 0.5)
    if not 0.0 < gamma < 1.0:
        raise ConfigError(f"WATERMARK_GAMMA: must be above 0 and below 1 (given: {gamma})")
    world_size = int(_number(environment, "WORLD_SIZE", 1))
    rank = int(_number(environment, "RANK", 0))
    if not 0 <= rank < world_size:
        raise ConfigError(f"RANK: must be from 0 to WORLD_SIZE - 1, {world_size - 1} (given: {rank})")
    return ShardSettings(
        uds_path,
        rank,
        world_size,
        support_chunking=_switch(environment, "PAGEPORT_SUPPORT_CHUNKING", True),
        overcommit=overcommit,
        prefill_logprobs=_switch(environment, "REQUEST_LOGPROBS", False),
        watermark=Watermark(gamma, _number(environment, "WATERMARK_DELTA", 2.0)),
    )


def engine_arguments(environment: Mapping[str, str]) -> dict[str, Any]:
    """Engine arguments from `PAGEPORT_<ARGUMENT>` variables, still as text."""
    return {
        name: environment[_PREFIX + name.upper()]
        for name in sorted(_ENGINE_FIELDS)
        if environment.get(_PREFIX + name.upper())
    }


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name}: must be a number (given: {text!r:.100})") from None


def _switch(environment: Mapping[str, str], name: str, default: bool) -> bool:
    text = environment.get(name, "").lower()
    if not text:
        return default
    if text not in ("0", "1", "true", "false"):
        raise ConfigError(f"{name}: must be 1, 0, true or false (given: {text!r:.100})")
    return text in ("1", "true")
