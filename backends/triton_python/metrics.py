"""The entry's figures in the server's own /metrics: vLLM's names, which dashboards know, and Pageport's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pageport.backends.triton_python.metric_writers import Counter, Distribution, Gauge, RequestHistogram
from pageport.core import EngineClientProtocol, EngineStats, RequestOutput

# How old a figure in /metrics can be while requests run. A round costs about 20 us a figure that changed.
PUBLISH_INTERVAL_S = 0.5

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_REQUEST_SECONDS = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
)
_NUMBERS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))


class _Figure(NamedTuple):
    """A figure of the engine, with the names under which it is published."""

    names: tuple[str, ...]
    help: str
    read: Callable[[EngineStats], float]


_COUNTERS = (
    _Figure(
        ("vllm:prompt_tokens_total", "pageport_prompt_tokens_total"),
        "Prompt tokens computed.",
        lambda stats: stats.prompt_tokens,
    ),
    _Figure(
        ("vllm:generation_tokens_total", "pageport_generation_tokens_total"),
        "Tokens generated.",
        lambda stats: stats.generation_tokens,
    ),
    _Figure(
        ("pageport_requests_finished_total",),
        "Requests that have ended, whatever the reason.",
        lambda stats: stats.finished_requests,
    ),
    _Figure(
        ("vllm:num_preemptions_total", "pageport_preemptions_total"),
        "Times that a running request gave up its blocks.",
        lambda stats: stats.num_preemptions,
    ),
    _Figure(
        ("vllm:prefix_cache_queries_total", "pageport_prefix_cache_queries_total"),
        "Prompt tokens looked up in the prefix cache.",
        lambda stats: stats.prefix_cache_queries,
    ),
    _Figure(
        ("vllm:prefix_cache_hits_total", "pageport_prefix_cache_hits_total"),
        "Prompt tokens that the prefix cache had.",
        lambda stats: stats.prefix_cache_hits,
    ),
)

_GAUGES = (
    _Figure(
        ("vllm:num_requests_running", "pageport_requests_running"),
        "Sequences that run now.",
        lambda stats: stats.num_running,
    ),
    _Figure(
        ("vllm:num_requests_waiting", "pageport_requests_waiting"),
        "Requests that wait for their turn.",
        lambda stats: stats.num_waiting,
    ),
    _Figure(
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "Share of the KV blocks in use; 1 is all.",
        lambda stats: stats.kv_blocks_used / max(1, stats.kv_blocks_total),
    ),
    _Figure(("pageport_kv_blocks_total",), "KV blocks there are.", lambda stats: stats.kv_blocks_total),
    _Figure(("pageport_kv_blocks_used",), "KV blocks in use.", lambda stats: stats.kv_blocks_used),
    _Figure(("pageport_kv_bytes_total",), "Bytes of all KV blocks.", lambda stats: stats.kv_bytes_total),
    _Figure(("pageport_kv_bytes_used",), "Bytes of the KV blocks in use.", lambda stats: stats.kv_bytes_used),
    _Figure(
        ("pageport_kv_waste_ratio",),
        "Reserved but unused token slots over reserved slots, now.",
        lambda stats: stats.kv_waste_ratio,
    ),
    _Figure(
        ("pageport_kv_waste_ratio_mean",),
        "Reserved but unused token slots over reserved slots, averaged over time.",
        lambda stats: stats.kv_waste_ratio_mean,
    ),
    _Figure(
        ("pageport_peak_requests_running",),
        "Most sequences that ran at once since the engine started.",
        lambda stats: stats.peak_running,
    ),
    _Figure(
        ("pageport_peak_kv_blocks_used",),
        "Most KV blocks in use at once since the engine started.",
        lambda stats: stats.peak_kv_blocks_used,
    ),
)


class EntryMetrics:
    """All figures of one model entry. Written from the service's event loop only."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._counters = [(f, Counter(f.names, f.help, labels)) for f in _COUNTERS]
        self._gauges = [(f, Gauge(f.names, f.help, labels)) for f in _GAUGES]
        self.token_latency = Distribution(
            (
                "vllm:time_per_output_token_seconds",
                "vllm:inter_token_latency_seconds",
                "pageport_inter_token_latency_seconds",
            ),
            "Seconds between two tokens of a sequence, as they leave for the client.",
            labels,
            _TOKEN_SECONDS,
        )
        self.first_token = RequestHistogram(
            ("vllm:time_to_first_token_seconds", "pageport_time_to_first_token_seconds"),
            "Seconds from a request's arrival to its first token.",
            labels,
            _SECONDS,
        )
        self._request = _RequestHistograms(labels)
        self._client: EngineClientProtocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._active = 0

    def attach(self, client: EngineClientProtocol) -> None:
        """Publish the figures of this engine from now on."""
        self._client = client
        self._publish()

    def detach(self) -> None:
        """Write the last figures and stop."""
        if self._timer is not None:
            self._timer.cancel()
        if self._client is not None:
            self._write(self._client.stats())
            self._client = None

    def begin(self) -> CallProgress:
        """A request starts; tell the result of all that comes of it."""
        self._active += 1
        self._wake()
        return CallProgress(self)

    def end(self) -> None:
        """A request has ended."""
        self._active -= 1
        self._wake()

    def observe_finished(self, output: RequestOutput, num_output_tokens: int, num_sequences: int) -> None:
        """`output` is the last one of a request that was answered to its end."""
        self._request.observe(output, num_output_tokens, num_sequences)

    def _wake(self) -> None:
        if self._timer is None and self._client is not None:
            self._timer = asyncio.get_running_loop().call_later(PUBLISH_INTERVAL_S, self._publish)

    def _publish(self) -> None:
        """Write what changed; again later, until all is quiet and written."""
        self._timer = None
        if self._client is not None and (self._write(self._client.stats()) or self._active):
            self._wake()

    def _write(self, stats: EngineStats) -> bool:
        """Whether anything had changed."""
        changed = [counter.update(figure.read(stats)) for figure, counter in self._counters]
        changed += [gauge.update(figure.read(stats)) for figure, gauge in self._gauges]
        changed.append(self.token_latency.flush())
        return any(changed)


class CallProgress:
    """One request's share in the figures."""

    def __init__(self, metrics: EntryMetrics) -> None:
        self._metrics = metrics
        self._last_token: dict[int, float] = {}
        self._num_tokens = 0

    def observe(self, output: RequestOutput) -> None:
        count = len(output.token_ids)
        now = time.monotonic()
        if count:
            if not self._last_token:
                self._metrics.first_token.observe(output.times.first_token - output.times.arrival)
            last = self._last_token.get(output.index)
            if last is not None:
                self._metrics.token_latency.add((now - last) / count, count)
            self._last_token[output.index] = now
            self._num_tokens += count
        if output.request_finished:
            self._metrics.observe_finished(output, self._num_tokens, len(self._last_token))

    def end(self) -> None:
        self._metrics.end()


class _RequestHistograms:
    """What is known of a request when it has ended."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        def seconds(name: str, text: str) -> RequestHistogram:
            return RequestHistogram((name,), f"Seconds {text}.", labels, _REQUEST_SECONDS)

        def numbers(name: str, text: str, buckets: Sequence[float] = _NUMBERS) -> RequestHistogram:
            return RequestHistogram((name,), text, labels, buckets)

        self._e2e = seconds("vllm:e2e_request_latency_seconds", "from a request's arrival to its end")
        self._queue = seconds("vllm:request_queue_time_seconds", "a request waited for its turn")
        self._prefill = seconds(
            "vllm:request_prefill_time_seconds", "from a request's start to its first token"
        )
        self._decode = seconds("vllm:request_decode_time_seconds", "from a request's first token to its end")
        self._inference = seconds("vllm:request_inference_time_seconds", "from a request's start to its end")
        self._prompt = numbers("vllm:request_prompt_tokens", "Prompt tokens of a request.")
        self._generated = numbers("vllm:request_generation_tokens", "Tokens generated for a request.")
        self._n = numbers(
            "vllm:request_params_n", "Sequences a request asked for.", (1.0, 2.0, 5.0, 10.0, 20.0)
        )

    def observe(self, output: RequestOutput, num_output_tokens: int, num_sequences: int) -> None:
        times = output.times
        self._e2e.observe(times.finished - times.arrival)
        self._queue.observe(times.first_scheduled - times.arrival)
        self._prefill.observe(times.first_token - times.first_scheduled)
        self._decode.observe(times.finished - times.first_token)
        self._inference.observe(times.finished - times.first_scheduled)
        self._prompt.observe(output.num_prompt_tokens)
        self._generated.observe(num_output_tokens)
        self._n.observe(num_sequences)
