"""Vector code that turns packed 4- and 8-bit codes into bfloat16, exactly, by looking them up.

Both tables fit registers: 16 numbers of 16 bits (`vpermw`), or 128 bytes for either half of the numbers 0 to 127, with
the sign put in afterwards (`vpermi2b`, AVX512-VBMI). That takes two to four instructions for 32 weights, where
converting by way of float32 takes ten.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from pageport.kernels.cpu.matmul_block import COLUMNS
from pageport.kernels.cpu.vectors import INT16, INT32, INT64

PAIR_ELEMENTS = 2 * COLUMNS  # codes of one pair of rows of a stripe

_BYTE = ir.IntType(8)
_BYTES = ir.VectorType(_BYTE, 64)
_HALF_BYTES = ir.VectorType(_BYTE, 32)
_SHORTS = ir.VectorType(INT16, 32)


def code_positions(bits: int) -> list[int]:
    """Where the codes of a pair of rows go, in the order (vector of 16 columns, column, row of the pair).

    4 bits: position p < 64 is the low half of byte p // 32 * 32 + p % 32, see `load_codes`; 8 bits: byte p.
    """
    if bits == 4:
        return list(range(PAIR_ELEMENTS))
    # Interleaving the halves of 64 numbers makes a vector of the first eight bytes of each sixteen, one of the others.
    return [
        vector // 2 * 64 + element // 8 * 16 + vector % 2 * 8 + element % 8
        for vector in range(4)
        for element in range(32)
    ]


def load_codes(builder: Any, address: Any, bits: int) -> list[Any]:
    """The four vectors of a pair of rows, int16 [32] each with the bits of bfloat16 numbers."""
    load: Callable[[Any, Any], list[Any]] = _from_nibbles if bits == 4 else _from_bytes
    chunk_bytes = 8 * bits
    return [
        vector
        for chunk in range(2)
        for vector in load(builder, builder.add(address, INT64(chunk * chunk_bytes)))
    ]


def _from_nibbles(builder: Any, address: Any) -> list[Any]:
    """32 bytes: the first vector's codes in their low halves, the second's in their high halves."""
    loaded = builder.load(builder.inttoptr(address, _HALF_BYTES.as_pointer()), align=1)
    wide = builder.zext(loaded, _SHORTS)
    # An index has five bits: with the table in there twice it does not matter what the fifth is.
    table = ir.Constant(_SHORTS, [_bfloat16_bits(code) for code in range(16)] * 2)
    look_up = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_SHORTS, [_SHORTS, _SHORTS]), "llvm.x86.avx512.permvar.hi.512"
    )
    high = builder.lshr(wide, ir.Constant(_SHORTS, [4] * 32))
    return [builder.call(look_up, [table, index]) for index in (wide, high)]


def _from_bytes(builder: Any, address: Any) -> list[Any]:
    """64 bytes, none of them -128."""
    codes = builder.load(builder.inttoptr(address, _BYTES.as_pointer()), align=1)
    negative = builder.sub(ir.Constant(_BYTES, [0] * 64), codes)
    is_negative = builder.icmp_signed("<", codes, ir.Constant(_BYTES, [0] * 64))
    size = builder.select(is_negative, negative, codes)
    sign = builder.and_(codes, ir.Constant(_BYTES, [0x80] * 64))
    look_up = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_BYTES, [_BYTES] * 3), "llvm.x86.avx512.vpermi2var.qi.512"
    )
    numbers = [_bfloat16_bits(code) for code in range(128)]
    low, high = (
        builder.call(look_up, [ir.Constant(_BYTES, table[:64]), size, ir.Constant(_BYTES, table[64:])])
        for table in ([number & 255 for number in numbers], [number >> 8 for number in numbers])
    )
    high = builder.or_(high, sign)
    vectors = []
    for start in (0, 8):
        order = [
            lane * 16 + start + position + half * 64
            for lane in range(4)
            for position in range(8)
            for half in range(2)
        ]
        pairs = builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(INT32, 64), order))
        vectors.append(builder.bitcast(pairs, _SHORTS))
    return vectors


def _bfloat16_bits(number: int) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", number))[0]
    return bits >> 16
