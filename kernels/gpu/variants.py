"""Every variant of every kernel that may be launched, described without a GPU: what `make kernels-check` compiles."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pageport.kernels.gpu.attention import attend_chunks, attend_splits, reduce_splits
from pageport.kernels.gpu.blocks import move_blocks
from pageport.kernels.gpu.rows import gate_rows, rms_norm_rows, rotate_and_write
from pageport.kernels.gpu.shapes import SPLIT, TileShape, chunk_shape, decode_shape, power_of_two

HEAD_DIMS = (64, 80, 96, 112, 128, 256)
_TORCH_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_FP8 = "fp8e4nv"


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation.

    Attributes:
        name: the kernel's and what makes the variant.
        types: Triton's type of each run-time argument, in order.
        constants: the compile-time arguments.
        divisible: names of arguments that are multiples of 16 whenever this variant is launched.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    divisible: tuple[str, ...] = ()
    warps: int = 4
    stages: int = 3

    @property
    def has_fp8(self) -> bool:
        return any(kind == f"*{_FP8}" for kind in self.types.values())


@dataclass(frozen=True, slots=True)
class _AttentionShape:
    head_dim: int
    dtype: str
    kv: str
    group: int = 4
    features: bool = False
    block_size: int = 16

    def __str__(self) -> str:
        kv = "" if self.kv == self.dtype else f", {self.kv} KV"
        features = ", window, cap, sinks" if self.features else ""
        return f"{self.head_dim}, {self.dtype}{kv}{features}"


def all_variants() -> Iterator[Variant]:
    """Block size and group change addresses only, so that one of each stands for all."""
    for shape in _attention_shapes():
        yield _chunks(shape)
        yield _splits(shape)
    for head_dim in (64, 128, 256):
        yield _reduce(head_dim)
    for dtype, add in itertools.product(_TORCH_TYPES, (False, True)):
        yield _rms_norm(dtype, add)
    for dtype in _TORCH_TYPES:
        yield _gate(dtype)
        yield _rotate(dtype, dtype)
        yield _move(dtype)
    yield _rotate("bf16", _FP8)


def _attention_shapes() -> Iterator[_AttentionShape]:
    for head_dim in HEAD_DIMS:
        yield _AttentionShape(head_dim, "bf16", "bf16")
    yield _AttentionShape(256, "fp32", "fp32")
    for head_dim, dtype in itertools.product((64, 128), ("fp16", "fp32")):
        yield _AttentionShape(head_dim, dtype, dtype)
    for head_dim in (64, 128):
        yield _AttentionShape(head_dim, "bf16", _FP8)
    for head_dim in (64, 128, 256):
        yield _AttentionShape(head_dim, "bf16", "bf16", features=True)
    yield _AttentionShape(128, "fp32", "fp32", features=True)


def _attention_constants(shape: _AttentionShape, tile: TileShape) -> dict[str, Any]:
    return {
        "GROUP": shape.group,
        "ROWS": tile.rows,
        "TILE": tile.tile,
        "BLOCK_SIZE": shape.block_size,
        "HEAD_DIM": shape.head_dim,
        "DIM": power_of_two(shape.head_dim),
        "HAS_CAP": shape.features,
        "HAS_WINDOW": shape.features,
        "HAS_SCALES": shape.kv != shape.dtype,
        "PRECISION": "ieee",
        "WIDE_DOT": False,
    }


def _chunks(shape: _AttentionShape) -> Variant:
    tile = chunk_shape(shape.head_dim, shape.group, _TORCH_TYPES[shape.dtype])
    types = {
        "out_ptr": f"*{shape.dtype}", "query_ptr": f"*{shape.dtype}", "kv_ptr": f"*{shape.kv}",
        "tables_ptr": "*i32", "starts_ptr": "*i32", "seq_lens_ptr": "*i32",
        "scales_ptr": "*fp32", "sinks_ptr": "*fp32",
        "scale": "fp32", "soft_cap": "fp32", "window": "i32", "first_seq": "i32", "num_seqs": "i32",
        "stride_query": "i32", "stride_out": "i32", "stride_block": "i32", "stride_kv": "i32", "stride_slot": "i32",
        "stride_head": "i32", "stride_table": "i32",
    }  # fmt: skip
    constants = _attention_constants(shape, tile) | {"HAS_SINKS": shape.features}
    return Variant(
        f"attend_chunks ({shape})",
        attend_chunks,
        types,
        constants,
        _divisible(types),
        tile.warps,
        tile.stages,
    )


def _splits(shape: _AttentionShape) -> Variant:
    tile = decode_shape(shape.head_dim, shape.group, _TORCH_TYPES[shape.dtype])
    types = {
        "total_ptr": "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32",
        "query_ptr": f"*{shape.dtype}", "kv_ptr": f"*{shape.kv}", "tables_ptr": "*i32", "seq_lens_ptr": "*i32",
        "scales_ptr": "*fp32", "scale": "fp32", "soft_cap": "fp32", "window": "i32",
        "stride_query": "i32", "stride_block": "i32", "stride_kv": "i32", "stride_slot": "i32", "stride_head": "i32",
        "stride_table": "i32",
    }  # fmt: skip
    constants = _attention_constants(shape, tile) | {"SPLIT": SPLIT}
    return Variant(
        f"attend_splits ({shape})",
        attend_splits,
        types,
        constants,
        _divisible(types),
        tile.warps,
        tile.stages,
    )


def _divisible(types: dict[str, str]) -> tuple[str, ...]:
    """What is a multiple of 16 for every launch of a real model: addresses, and the strides that heads make."""
    strides = ("stride_query", "stride_out", "stride_block", "stride_kv", "stride_slot", "stride_head")
    return tuple(name for name, kind in types.items() if kind.startswith("*") or name in strides)


def _reduce(head_dim: int) -> Variant:
    types = {
        "out_ptr": "*bf16", "total_ptr": "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32", "seq_lens_ptr": "*i32",
        "sinks_ptr": "*fp32", "window": "i32", "num_splits": "i32", "stride_out": "i32",
    }  # fmt: skip
    constants = {
        "SPLIT": SPLIT, "HEAD_DIM": head_dim, "DIM": power_of_two(head_dim), "HAS_WINDOW": True, "HAS_SINKS": True,
    }  # fmt: skip
    return Variant(f"reduce_splits ({head_dim})", reduce_splits, types, constants, _divisible(types))


def _rms_norm(dtype: str, add: bool) -> Variant:
    types = dict.fromkeys(("out_ptr", "x_ptr", "residual_ptr", "weight_ptr"), f"*{dtype}")
    types |= {"eps": "fp32", "stride_x": "i32"}
    constants = {"WIDTH": 4096, "COLUMNS": 4096, "ADD": add}
    return Variant(
        f"rms_norm_rows ({dtype}{', add' if add else ''})", rms_norm_rows, types, constants, _divisible(types)
    )


def _gate(dtype: str) -> Variant:
    types = {"out_ptr": f"*{dtype}", "x_ptr": f"*{dtype}", "stride_x": "i32"}
    constants = {"WIDTH": 14336, "COLUMNS": 1024, "GELU": dtype == "fp16"}
    return Variant(f"gate_rows ({dtype})", gate_rows, types, constants, _divisible(types))


def _rotate(dtype: str, kv: str) -> Variant:
    types = dict.fromkeys(("query_ptr", "key_ptr", "value_ptr"), f"*{dtype}") | {
        "kv_ptr": f"*{kv}", "positions_ptr": "*i64", "slots_ptr": "*i64", "cos_sin_ptr": "*fp32",
        "scales_ptr": "*fp32", "stride_query": "i32", "stride_key": "i32", "stride_value": "i32",
        "stride_block": "i32", "stride_kv": "i32", "stride_slot": "i32", "stride_head": "i32",
    }  # fmt: skip
    constants = {
        "BLOCK_SIZE": 16, "HEADS": 32, "HEADS_PADDED": 32, "KV_HEADS": 8, "KV_HEADS_PADDED": 8,
        "HALF": 64, "HALF_PADDED": 64, "ROTATE": True, "HAS_SCALES": kv != dtype,
    }  # fmt: skip
    label = dtype if kv == dtype else f"{dtype}, {kv} KV"
    return Variant(f"rotate_and_write ({label})", rotate_and_write, types, constants, _divisible(types))


def _move(dtype: str) -> Variant:
    types = {
        "target_ptr": f"*{dtype}", "source_ptr": f"*{dtype}", "target_ids_ptr": "*i64", "source_ids_ptr": "*i64",
    }  # fmt: skip
    constants = {"SIZE": 32 * 2 * 16 * 8 * 128, "CHUNK": 1024, "GATHER": True, "SCATTER": True}
    return Variant(f"move_blocks ({dtype})", move_blocks, types, constants, _divisible(types))
