"""Whole decode steps on a GPU against what its memory allows, and answers a second against transformers.

    python benchmarks/gpu_serving.py [--shape llama-8b] [--shape qwen3-0.6b] [--eager] [--write]
    python benchmarks/gpu_serving.py --device cpu --shape tiny --quick    # shows that it runs; figures mean nothing

Weights are random, the same for all. A step is all that an engine does but text: plan, inputs, model, greedy sampling.
Its floor is the time in which the measured bandwidth of a copy moves the weights and the cached keys and values once.
The answers' table takes prompts too; contenders take turns, round by round, in one process. transformers' static batch
is `generate`, its continuous batching `continuous_batching_context_manager`, both with their defaults on a GPU.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from decode_loop import DecodeLoop, random_transformers_model, same_weights
from gpu_busy import busy_share
from gpu_timing import DeviceClock, choose_device, device_name, free_memory, gpu_kernels
from results import machine, write_section

from pageport.core.model.llama import LlamaForCausalLM
from pageport.kernels import Kernels

Prompts = list[list[int]]
Contender = Callable[[Prompts, int], float]  # prompts and new tokens of each to seconds

_LLAMA_8B = {
    "vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 8192,
}  # fmt: skip
_QWEN3_600M = {
    "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}  # fmt: skip
_TINY = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
}  # fmt: skip


def shapes() -> dict[str, Any]:
    """transformers' configurations by name."""
    from transformers import LlamaConfig, Qwen3Config

    return {
        "llama-8b": LlamaConfig(**_LLAMA_8B),
        "qwen3-0.6b": Qwen3Config(**_QWEN3_600M),
        "tiny": LlamaConfig(**_TINY),
    }


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences at once; tokens of context that the steps start at; steps; rounds, prompt and new tokens of answers."""

    batches: tuple[int, ...] = (1, 8, 64, 256)
    context: int = 1024
    steps: int = 30
    prompt_tokens: int = 128
    new_tokens: int = 64
    rounds: int = 3
    copied_bytes: int = 1 << 32


QUICK = Load((1, 3), context=20, steps=2, prompt_tokens=8, new_tokens=3, rounds=1, copied_bytes=1 << 20)


@dataclass(frozen=True, slots=True)
class Bench:
    """One shape's model, twice, with the same weights."""

    name: str
    theirs: Any
    ours: LlamaForCausalLM
    kernels: Kernels
    dtype: torch.dtype
    device: torch.device
    load: Load

    def prompts(self, count: int, tokens: int, seed: int = 0) -> Prompts:
        rng = random.Random(seed)
        return [rng.choices(range(3, self.ours.config.vocab_size), k=tokens) for _ in range(count)]

    def loop(self, batch: int, max_model_len: int, *, graphs: bool) -> DecodeLoop:
        return DecodeLoop(
            self.ours, self.kernels, self.dtype, self.device,
            max_num_seqs=batch, max_model_len=max_model_len, graphs=graphs,
        )  # fmt: skip

    def bytes_of_step(self, batch: int, context: int) -> int:
        """What a step cannot help reading: weights (of an embedding table its rows only), keys and values."""
        config = self.ours.config
        weights = sum(parameter.numel() for parameter in self.theirs.parameters())
        if not config.tie_word_embeddings:
            weights -= config.vocab_size * config.hidden_size
        cached = batch * context * 2 * config.num_layers * config.num_kv_heads * config.head_dim
        return (weights + cached) * self.dtype.itemsize


# -- whole steps -----------------------------------------------------------------------------------------


def step_rows(bench: Bench, modes: dict[str, bool], bandwidth: float) -> Iterator[str]:
    """`modes`: names, and whether steps are CUDA graphs."""
    yield "| shape | sequences | steps | ms a step | tokens/s | of the roofline | GPU busy |"
    yield "|---" * 7 + "|"
    load = bench.load
    for batch in load.batches:
        floor = bench.bytes_of_step(batch, load.context + load.steps // 2) / bandwidth
        for mode, graphs in modes.items():
            seconds, busy = time_steps(bench, batch, graphs=graphs)
            free_memory(bench.device)
            yield (
                f"| {bench.name} | {batch} | {mode} | {seconds * 1e3:.2f} | {batch / seconds:,.0f} "
                f"| {floor / seconds:.0%} | {'–' if busy is None else f'{busy:.1%}'} |"
            )


def time_steps(bench: Bench, batch: int, *, graphs: bool) -> tuple[float, float | None]:
    """A step's median seconds, and the share of the steps in which the GPU computes (None without a GPU)."""
    load = bench.load
    rounds = 2 if bench.device.type == "cuda" else 1
    tokens = 3 + rounds * load.steps
    loop = bench.loop(batch, load.context + tokens, graphs=graphs)
    loop.fill_with_noise()
    for prompt in bench.prompts(batch, load.context):
        loop.add_running(prompt, tokens)
    for _ in range(3):  # warm up
        loop.step()
    times = []
    for _ in range(load.steps):
        start = time.perf_counter()
        loop.step()  # waits for its tokens
        times.append(time.perf_counter() - start)
    busy = busy_share(loop.step, load.steps) if bench.device.type == "cuda" else None
    return statistics.median(times), busy


# -- answers ---------------------------------------------------------------------------------------------


def answer_rows(bench: Bench, modes: dict[str, bool]) -> Iterator[str]:
    yield "| shape | sequences | | output tokens/s, median | lowest – highest | against static batching |"
    yield "|---" * 6 + "|"
    load = bench.load
    for batch in load.batches:
        contenders = {
            "transformers, static batch": lambda prompts, new: static_batch(bench, prompts, new),
            "transformers, continuous batching": lambda prompts, new: continuous(bench, prompts, new),
        } | {f"Pageport, {mode}": paged(bench, batch, graphs=graphs) for mode, graphs in modes.items()}
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        failures: dict[str, str] = {}
        for number in range(load.rounds + 1):  # the first warms up
            prompts = bench.prompts(batch, load.prompt_tokens, seed=number)
            for name, contender in contenders.items():
                if name in failures:
                    continue
                try:
                    seconds = contender(prompts, load.new_tokens)
                except (
                    ImportError,
                    RuntimeError,
                ) as error:  # a library or memory is missing: the others go on
                    failures[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]:.80}"
                    continue
                free_memory(bench.device)
                if number:
                    rates[name].append(batch * load.new_tokens / seconds)
        base = next(iter(rates.values()))
        for name, values in rates.items():
            cells = f"{failures[name]} | – | –" if name in failures else _rate_cells(values, base)
            yield f"| {bench.name} | {batch} | {name} | {cells} |"


def _rate_cells(values: list[float], base: list[float]) -> str:
    ratio = f"{statistics.median(values) / statistics.median(base):.2f} ×" if base else "–"
    return f"{statistics.median(values):,.1f} | {min(values):,.1f} – {max(values):,.1f} | {ratio}"


def paged(bench: Bench, batch: int, *, graphs: bool) -> Contender:
    loop = bench.loop(batch, bench.load.prompt_tokens + bench.load.new_tokens, graphs=graphs)

    def run(prompts: Prompts, new_tokens: int) -> float:
        start = time.perf_counter()
        answers = loop.generate(prompts, new_tokens)
        return _checked(start, answers, new_tokens)

    return run


@torch.inference_mode()
def static_batch(bench: Bench, prompts: Prompts, new_tokens: int) -> float:
    ids = torch.tensor(prompts, device=bench.device)
    start = time.perf_counter()
    output = bench.theirs.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
    )
    return _checked(start, output[:, ids.shape[1] :].tolist(), new_tokens)


def continuous(bench: Bench, prompts: Prompts, new_tokens: int) -> float:
    """Timed from the first request to the last answer, once its thread has answered others."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # Its own object: continuous batching exchanges the model's attention. The weights are shared.
    shared = {id(parameter): parameter for parameter in bench.theirs.parameters()}
    model = copy.deepcopy(bench.theirs, shared)
    page = ContinuousBatchingConfig().page_size
    pages = len(prompts) * -(-(len(prompts[0]) + new_tokens) // page) * model.config.num_hidden_layers
    settings = ContinuousBatchingConfig(
        num_blocks=max(pages, 64), max_batch_tokens=2048, max_requests_per_batch=max(len(prompts), 2)
    )
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=new_tokens)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=settings, timeout=60, warmup=False
    ) as manager:
        _collect(manager, [prompt[::-1] for prompt in prompts], new_tokens)  # warm up, sharing no prefix
        start = time.perf_counter()
        return _checked(start, _collect(manager, prompts, new_tokens), new_tokens)


def _collect(manager: Any, prompts: Prompts, new_tokens: int) -> list[list[int]]:
    names = [manager.add_request(list(prompt), max_new_tokens=new_tokens) for prompt in prompts]
    answers: dict[str, list[int]] = {}
    while len(answers) < len(names):
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            if result.error is not None:
                raise RuntimeError(result.error)
            answers[result.request_id] = result.generated_tokens
        elif result is None and not manager.is_running():
            raise RuntimeError("transformers' generation thread has ended")
    return [answers[name] for name in names]


def _checked(start: float, answers: list[list[int]], new_tokens: int) -> float:
    """Seconds since `start`; every answer must have its length."""
    seconds = time.perf_counter() - start
    lengths = {len(answer) for answer in answers}
    if lengths != {new_tokens}:
        raise RuntimeError(f"answers have {lengths} tokens, not {new_tokens}")
    return seconds


# -- all of it -------------------------------------------------------------------------------------------


def measure(names: list[str], load: Load, device: torch.device, modes: dict[str, bool]) -> str:
    """The section's Markdown; rows are printed as they come."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    bandwidth = DeviceClock(device).copy_bandwidth(load.copied_bytes, 10)
    lines = [
        f"{device_name(device)}; random weights, {str(dtype).removeprefix('torch.')}. A copy moves "
        f"{bandwidth / 1e9:,.0f} GB/s. Steps: context {load.context:,} and {load.steps} more, medians. Answers: "
        f"{load.prompt_tokens} prompt and {load.new_tokens} new tokens, rounds: {load.rounds}."
    ]
    print(lines[0], flush=True)
    for name in names:
        theirs = random_transformers_model(shapes()[name], dtype, device)
        kernels = gpu_kernels()
        bench = Bench(
            name, theirs, same_weights(theirs, kernels, dtype, device), kernels, dtype, device, load
        )
        for rows in (step_rows(bench, modes, bandwidth), answer_rows(bench, modes)):
            lines.append("")
            for row in rows:
                print(row, flush=True)
                lines.append(row)
        del theirs, bench, rows
        free_memory(device)
    return "\n".join([*lines, "", f"{machine()}."])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", action="append", choices=("llama-8b", "qwen3-0.6b", "tiny"))
    parser.add_argument("--eager", action="store_true", help="leave steps as CUDA graphs out")
    parser.add_argument("--quick", action="store_true", help="few sequences, short contexts")
    parser.add_argument("--write", action="store_true", help="put the tables into RESULTS.md")
    options = parser.parse_args()
    if options.write and (options.quick or options.device == "cpu"):
        parser.error("--write is for a GPU and the full load")
    device = choose_device(options.device)
    modes = {"kernel by kernel": False}
    if device.type == "cuda" and not options.eager:
        modes["CUDA graphs"] = True
    names = options.shape or ["llama-8b", "qwen3-0.6b"]
    table = measure(names, QUICK if options.quick else Load(), device, modes)
    if options.write:
        write_section("gpu-serving", table)


if __name__ == "__main__":
    main()
