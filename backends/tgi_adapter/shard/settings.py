"""How the shard answers the router: from the launcher's environment, and from variables of our own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pageport.core import ConfigError, Watermark

OVERCOMMIT = "PAGEPORT_OVERCOMMIT"
SUPPORT_CHUNKING = "PAGEPORT_SUPPORT_CHUNKING"
MAX_OVERCOMMIT = 100.0


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """
    Attributes:
        uds_path: prefix of the sockets; rank r listens on `<uds_path>-<r>`.
        rank, world_size: of several ranks each serves the requests whose id is its rank modulo their number.
        block_size: tokens of a block, as the router counts them.
        support_chunking: the router hands over new requests together with the running batch, and prompts in pieces.
        overcommit: the router is promised so many times the token slots that there are: the engine preempts where TGI
            could only reserve. 1 promises what there is.
        prefill_logprobs: prompts' log-probabilities are given to those who ask.
    """

    uds_path: str
    rank: int = 0
    world_size: int = 1
    block_size: int = 16
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


def read_shard_settings(uds_path: str, environment: Mapping[str, str], *, block_size: int) -> ShardSettings:
    """
    Raises:
        ConfigError: naming the variable, the limit and the value given.
    """
    read = _Reader(environment)
    world_size = read.whole("WORLD_SIZE", 1, least=1)
    rank = read.whole("RANK", 0, least=0)
    if rank >= world_size:
        raise ConfigError(f"RANK: must be below WORLD_SIZE, {world_size} (given: {rank})")
    overcommit = read.number(OVERCOMMIT, 1.0)
    if not 1.0 <= overcommit <= MAX_OVERCOMMIT:
        raise ConfigError(f"{OVERCOMMIT}: must be from 1 to {MAX_OVERCOMMIT:g} (given: {overcommit:g})")
    gamma = read.number("WATERMARK_GAMMA", 0.5)
    if not 0.0 < gamma < 1.0:
        raise ConfigError(f"WATERMARK_GAMMA: must be between 0 and 1 (given: {gamma:g})")
    delta = read.number("WATERMARK_DELTA", 2.0)
    if not math.isfinite(delta):
        raise ConfigError(f"WATERMARK_DELTA: must be finite (given: {delta:g})")
    return ShardSettings(
        uds_path,
        rank,
        world_size,
        block_size,
        support_chunking=read.switch(SUPPORT_CHUNKING, read.switch("PREFILL_CHUNKING", True)),
        overcommit=overcommit,
        prefill_logprobs=read.switch("REQUEST_LOGPROBS", False),
        watermark=Watermark(gamma, delta),
    )


class _Reader:
    """Variables as numbers and switches; an empty one counts as not set."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def number(self, name: str, default: float) -> float:
        text = self._environment.get(name)
        if not text:
            return default
        try:
            return float(text)
        except ValueError:
            raise ConfigError(f"{name}: must be a number (given: {text!r:.100})") from None

    def whole(self, name: str, default: int, *, least: int) -> int:
        number = float(self.number(name, default))
        if not number.is_integer() or number < least:
            raise ConfigError(f"{name}: must be a whole number from {least} on (given: {number:g})")
        return int(number)

    def switch(self, name: str, default: bool) -> bool:
        text = self._environment.get(name, "").lower()
        if not text:
            return default
        if text not in ("0", "1", "true", "false"):
            raise ConfigError(f"{name}: must be 1, 0, true or false (given: {text!r:.100})")
        return text in ("1", "true")
