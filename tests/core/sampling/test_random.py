from __future__ import annotations

import numpy as np
import pytest

from pageport.core.sampling.random import philox_4x32, uniforms

# The published known answers of Random123 (kat_vectors, philox4x32 10): counter, key, result.
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def words(values: list[int]) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], ...]:
    return tuple(np.array([value], dtype=np.uint64) for value in values)


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: list[int], key: list[int], result: list[int]) -> None:
    assert [int(word[0]) for word in philox_4x32(words(counter), words(key))] == result


def test_a_uniform_is_the_upper_53_bits_of_the_first_two_words() -> None:
    drawn = uniforms(np.array([0], dtype=np.uint64), np.array([0], dtype=np.uint64))[0]
    assert drawn == (0x6627E8D5E169C58D >> 11) / 2**53


def test_uniforms_depend_on_all_bits_of_seed_and_index() -> None:
    seeds = np.array([0, 1, 1 << 32, 1 << 63, 0, 0], dtype=np.uint64)
    indices = np.array([0, 0, 0, 0, 1, 1 << 32], dtype=np.uint64)
    drawn = uniforms(seeds, indices)
    assert len(set(drawn.tolist())) == len(drawn)
    assert ((drawn >= 0) & (drawn < 1)).all()


def test_uniforms_are_spread_evenly_over_seeds_and_over_indices() -> None:
    count = np.arange(100_000, dtype=np.uint64)
    zero = np.zeros_like(count)
    for drawn in (uniforms(count, zero), uniforms(zero, count)):
        observed, _ = np.histogram(drawn, bins=100, range=(0, 1))
        chi_square = ((observed - 1000) ** 2 / 1000).sum()
        assert chi_square < 148.2  # 99 degrees of freedom, one in a thousand
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.012
