"""Decode attention on the CPU: straight from the blocks, against gathering them for torch's SDPA.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/attention_cpu.py [--layers 8] [--repeats 40]

The shape is the demo model's: 9 query heads, 3 KV heads of 64, bfloat16, blocks of 16 in random order. Each
call takes the next layer of a block-major pool, as a step does. The variants take turns, and the best and
the median of the repeats are shown, so that a neighbour on the machine hurts all alike. `GB/s` counts keys
and values once; `sum` is the speed at which torch sums an array that fits no cache.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import click
import torch
from torch.nn import functional

from pageport.kernels import Kernels, RaggedBatch, make_kernels

QUERY_HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
SHAPES = [(batch, context) for batch in (1, 8, 32, 64) for context in (128, 512, 2048)]


def decode_batch(num_seqs: int, context: int) -> RaggedBatch:
    blocks = context // BLOCK
    return RaggedBatch(
        query_start_loc=torch.arange(num_seqs + 1, dtype=torch.int32),
        seq_lens=torch.full((num_seqs,), context, dtype=torch.int32),
        block_tables=torch.randperm(num_seqs * blocks).view(num_seqs, blocks).int(),
        positions=torch.full((num_seqs,), context - 1),
        slot_mapping=torch.zeros(num_seqs, dtype=torch.int64),
        num_decodes=num_seqs,
        query_lens_host=(1,) * num_seqs,
        seq_lens_host=(context,) * num_seqs,
    )


def gather_and_sdpa(query: torch.Tensor, kv_cache: torch.Tensor, batch: RaggedBatch) -> torch.Tensor:
    """All sequences at once; they have one length here, which spares this variant its padding."""
    num_seqs = query.shape[0]
    keys, values = (
        kv_cache[:, part]
        .index_select(0, batch.block_tables.flatten())
        .view(num_seqs, -1, KV_HEADS, HEAD_DIM)
        .transpose(1, 2)
        for part in (0, 1)
    )
    return functional.scaled_dot_product_attention(query.unsqueeze(2), keys, values, enable_gqa=True).squeeze(
        2
    )


def measure(variants: list[Callable[[int], object]], repeats: int) -> list[list[float]]:
    """Microseconds of each variant's calls; they take turns, and the first round does not count."""
    times: list[list[float]] = [[] for _ in variants]
    for repeat in range(repeats + 1):
        for call, values in zip(variants, times, strict=True):
            start = time.perf_counter()
            call(repeat)
            values.append((time.perf_counter() - start) * 1e6)
    return [values[1:] for values in times]


def compare(kernels: Kernels, num_seqs: int, context: int, layers: int, repeats: int) -> list[list[float]]:
    """Microseconds of calls, paged and gathering."""
    batch = decode_batch(num_seqs, context)
    pool = torch.randn(num_seqs * context // BLOCK, layers, 2, BLOCK, KV_HEADS, HEAD_DIM).bfloat16()
    query = torch.randn(num_seqs, QUERY_HEADS, HEAD_DIM).bfloat16()
    views = pool.unbind(1)
    return measure(
        [
            lambda i: kernels.paged_attention(query, views[i % layers], batch, scale=HEAD_DIM**-0.5),
            lambda i: gather_and_sdpa(query, views[i % layers], batch),
        ],
        repeats,
    )


@click.command()
@click.option("--layers", default=8, show_default=True, help="layers of the pool that calls take turns on")
@click.option("--repeats", default=40, show_default=True)
@click.option("--threads", default=None, type=int, help="torch's threads; all cores where not given")
@torch.inference_mode()
def main(layers: int, repeats: int, threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
    kernels = make_kernels("cpu", torch.device("cpu"))
    large = torch.ones(32 << 20)
    print(f"{torch.get_num_threads()} threads; µs best / median; GB/s of the best")
    print(
        f"{'batch':>5} {'context':>7} {'paged':>17} {'GB/s':>5} {'gather + SDPA':>19} {'ratio':>5} {'sum GB/s':>8}"
    )
    for num_seqs, context in SHAPES:
        paged, gather = compare(kernels, num_seqs, context, layers, repeats)
        [total] = measure([lambda _: large.sum()], 5)
        size = num_seqs * context * 2 * KV_HEADS * HEAD_DIM * 2
        print(
            f"{num_seqs:5} {context:7} {min(paged):8.1f} {statistics.median(paged):8.1f} "
            f"{size / min(paged) / 1e3:5.1f} {min(gather):9.1f} {statistics.median(gather):9.1f} "
            f"{statistics.median(gather) / statistics.median(paged):5.1f} "
            f"{large.numel() * 4 / min(total) / 1e3:8.1f}"
        )


if __name__ == "__main__":
    main()
