"""Attention kernels on a GPU against what the GPU can do, and against torch's SDPA over a contiguous cache.

    python benchmarks/gpu_kernels.py [--repeats 20] [--write]
    python benchmarks/gpu_kernels.py --device cpu --quick    # shows that the script runs; figures mean nothing

Heads as in an 8B Llama: 32 for queries, 8 for keys and values, of 128, bfloat16, blocks of 16 in random order. Decodes
are held against the measured bandwidth of a copy (bytes of keys and values once), prompts against the measured rate of
a large matrix product (operations below the diagonal). Both kernels and SDPA take turns within one run; each call is
a CUDA graph, and before each the L2 cache is flushed. SDPA finds keys and values without a gap, one length for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from gpu_timing import DeviceClock, choose_device, device_name, free_memory, gpu_kernels
from results import machine, write_section
from torch.nn import functional

from pageport.kernels import Kernels, RaggedBatch

BLOCK = 16
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured: heads (query, KV, size), the smallest KV memory in bytes, (sequences, context) of the cases."""

    heads: tuple[int, int, int]
    pool_bytes: int
    decodes: list[tuple[int, int]]
    prompts: list[tuple[int, int]]
    copied_bytes: int
    matrix_sides: tuple[int, ...]


FULL = Sizes(
    heads=(32, 8, 128),
    pool_bytes=1 << 30,
    decodes=[
        (batch, context)
        for batch in (1, 8, 32, 128, 256)
        for context in (1024, 4096, 8192, 32768)
        if batch * context <= 1 << 21
    ],
    prompts=[(max(1, 8192 // length), length) for length in (1024, 2048, 4096, 8192, 16384, 32768)],
    copied_bytes=1 << 32,
    matrix_sides=(4096, 8192, 16384),
)
QUICK = Sizes((4, 2, 64), 1 << 20, [(1, 64), (2, 608)], [(2, 32)], 1 << 20, (64,))


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of sequences of one length; the last `new` tokens of each are computed.

    query [sequences * new, Hq, D]; kv_cache [blocks, 2, BLOCK, Hkv, D], as a layer of the pool.
    """

    sequences: int
    context: int
    new: int
    query: torch.Tensor
    kv_cache: torch.Tensor
    batch: RaggedBatch

    def paged(self, kernels: Kernels) -> torch.Tensor:
        scale = self.query.shape[-1] ** -0.5
        return kernels.paged_attention(self.query, self.kv_cache, self.batch, scale=scale)

    def sdpa(self) -> Callable[[], torch.Tensor]:
        """The same through torch: [sequences, heads, new, D]. Copies keys and values out of their blocks first."""
        heads, dim = self.query.shape[1:]
        query = self.query.view(self.sequences, self.new, heads, dim).transpose(1, 2).contiguous()
        tables = self.batch.block_tables.flatten().long()
        keys, values = (
            self.kv_cache[:, part]
            .index_select(0, tables)
            .view(self.sequences, self.context, -1, dim)
            .transpose(1, 2)
            .contiguous()
            for part in (0, 1)
        )
        causal = self.new > 1
        return lambda: functional.scaled_dot_product_attention(
            query, keys, values, is_causal=causal, enable_gqa=True
        )


def make_case(sizes: Sizes, sequences: int, context: int, new: int, device: torch.device) -> Case:
    """Random content in random blocks, all over the pool."""
    heads, kv_heads, dim = sizes.heads
    per_sequence = -(-context // BLOCK)
    assert per_sequence * BLOCK == context
    block_bytes = 2 * BLOCK * kv_heads * dim * DTYPE.itemsize
    num_blocks = max(sequences * per_sequence, sizes.pool_bytes // block_bytes)
    chosen = torch.randperm(num_blocks, device=device)[: sequences * per_sequence]
    positions = torch.arange(context - new, context, device=device).repeat(sequences)
    return Case(
        sequences,
        context,
        new,
        torch.randn((sequences * new, heads, dim), dtype=DTYPE, device=device),
        torch.randn((num_blocks, 2, BLOCK, kv_heads, dim), dtype=DTYPE, device=device),
        RaggedBatch(
            query_start_loc=torch.arange(0, sequences * new + 1, new, dtype=torch.int32, device=device),
            seq_lens=torch.full((sequences,), context, dtype=torch.int32, device=device),
            block_tables=chosen.view(sequences, per_sequence).int(),
            positions=positions,
            slot_mapping=torch.zeros_like(positions),
            num_decodes=sequences if new == 1 else 0,
            query_lens_host=(new,) * sequences,
            seq_lens_host=(context,) * sequences,
        ),
    )


def compare(case: Case, kernels: Kernels, clock: DeviceClock, repeats: int) -> tuple[float, float]:
    """Seconds of our kernel and of SDPA; their results agree.

    Raises:
        RuntimeError: they do not.
    """
    sdpa = case.sdpa()
    heads, dim = case.query.shape[1:]
    expected = sdpa().transpose(1, 2).reshape(-1, heads, dim).float()
    error = (case.paged(kernels).float() - expected).norm() / expected.norm()
    if not error < 0.02:  # both round weights and results to 8 bits
        raise RuntimeError(f"{case.sequences} x {case.context}: results differ by {error:.3f}")
    seconds = clock.medians({"paged": lambda: case.paged(kernels), "sdpa": sdpa}, repeats)
    return seconds["paged"], seconds["sdpa"]


def decode_rows(
    sizes: Sizes, kernels: Kernels, clock: DeviceClock, device: torch.device, bandwidth: float, repeats: int
) -> Iterator[str]:
    yield "| sequences | context | µs | GB/s | of the copy's | SDPA, µs | SDPA's time to ours |"
    yield "|---" * 7 + "|"
    _, kv_heads, dim = sizes.heads
    for sequences, context in sizes.decodes:
        paged, sdpa = compare(make_case(sizes, sequences, context, 1, device), kernels, clock, repeats)
        free_memory(device)
        rate = sequences * context * 2 * kv_heads * dim * DTYPE.itemsize / paged
        yield (
            f"| {sequences} | {context:,} | {paged * 1e6:.1f} | {rate / 1e9:,.0f} | {rate / bandwidth:.0%} "
            f"| {sdpa * 1e6:.1f} | {sdpa / paged:.2f} |"
        )


def prompt_rows(
    sizes: Sizes, kernels: Kernels, clock: DeviceClock, device: torch.device, peak: float, repeats: int
) -> Iterator[str]:
    yield "| prompts | length | µs | TFLOP/s | of the product's | SDPA, µs | SDPA's time to ours |"
    yield "|---" * 7 + "|"
    heads, _, dim = sizes.heads
    for sequences, length in sizes.prompts:
        paged, sdpa = compare(make_case(sizes, sequences, length, length, device), kernels, clock, repeats)
        free_memory(device)
        rate = sequences * 2 * heads * dim * length * (length + 1) / paged
        yield (
            f"| {sequences} | {length:,} | {paged * 1e6:.1f} | {rate / 1e12:.1f} | {rate / peak:.0%} "
            f"| {sdpa * 1e6:.1f} | {sdpa / paged:.2f} |"
        )


@torch.inference_mode()
def measure(sizes: Sizes, device: torch.device, repeats: int) -> str:
    """The section's Markdown; rows are printed as they come."""
    kernels, clock = gpu_kernels(), DeviceClock(device)
    bandwidth = clock.copy_bandwidth(sizes.copied_bytes, repeats)
    peak = clock.matrix_rate(sizes.matrix_sides, repeats)
    heads, kv_heads, dim = sizes.heads
    lines = [
        f"{device_name(device)}; {heads} query heads, {kv_heads} KV heads of {dim}, bfloat16, blocks of {BLOCK}. "
        f"A copy moves {bandwidth / 1e9:,.0f} GB/s, a matrix product does {peak / 1e12:,.0f} TFLOP/s. "
        f"Medians of {repeats}."
    ]
    print(lines[0], flush=True)
    for title, rows in (
        ("Decodes:", decode_rows(sizes, kernels, clock, device, bandwidth, repeats)),
        ("Prompts:", prompt_rows(sizes, kernels, clock, device, peak, repeats)),
    ):
        lines += ["", title, ""]
        for row in rows:
            print(row, flush=True)
            lines.append(row)
    return "\n".join([*lines, "", f"{machine()}."])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--write", action="store_true", help="put the tables into RESULTS.md")
    options = parser.parse_args()
    if options.write and (options.quick or options.device == "cpu"):
        parser.error("--write is for a GPU and full shapes")
    device = choose_device(options.device)
    table = measure(QUICK if options.quick else FULL, device, 2 if options.quick else options.repeats)
    if options.write:
        write_section("gpu-kernels", table)


if __name__ == "__main__":
    main()
