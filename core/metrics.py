"""What the engine counts, in names no server owns. Adapters translate to their server's metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Gauges are of the moment, peaks since the engine process started; counters only grow, and a client
    goes on counting when an engine process follows another.

    Attributes:
        kv_waste_ratio: reserved but unused token slots over reserved slots, of the moment.
        kv_waste_ratio_mean: the same, averaged over the time in which any slot was reserved.
        prefix_cache_queries, prefix_cache_hits: prompt tokens that requests looked up in the prefix cache as they
            began; those of them that it had.
        kv_bytes_total, kv_bytes_used: bytes of all blocks; of those held by sequences.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    kv_bytes_total: int = 0
    kv_bytes_used: int = 0
    kv_waste_ratio: float = 0.0
    kv_waste_ratio_mean: float = 0.0
    peak_running: int = 0
    peak_kv_blocks_used: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished_requests: int = 0
    steps: int = 0

    def after(self, earlier: EngineStats) -> EngineStats:
        """These figures, with the counters of the engines before added."""
        sums = {name: getattr(self, name) + getattr(earlier, name) for name in _COUNTERS}
        return replace(self, **sums)


_COUNTERS = (
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prompt_tokens",
    "generation_tokens",
    "finished_requests",
    "steps",
)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine has resolved from its configuration, the model and the machine.

    Attributes:
        max_model_len: tokens that prompt and answer of one sequence may have together.
        kv_token_capacity: token slots of all blocks.
    """

    max_model_len: int
    kv_token_capacity: int
    vocab_size: int
    max_num_seqs: int
    dtype: str
    device: str
    kernels: str
    eos_token_ids: tuple[int, ...]
