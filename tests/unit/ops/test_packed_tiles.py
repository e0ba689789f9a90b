"""The blocks of packed sequences that programs take: each of them once, those of long sequences first."""

import numpy as np
import pytest

from tessera.ops.attn.packed import (
    FIRST,
    HEAD,
    KEYS,
    QUERIES,
    SEQUENCE,
    START_OF_KEYS,
    START_OF_NUMBERS,
    START_OF_QUERIES,
    tiles_of,
    together,
)

BLOCK = 64


def lengths(seed):
    rng = np.random.default_rng(seed)
    count = rng.integers(1, 300 if seed % 2 else 9)
    queries, keys = rng.integers(0, 400, (2, count))
    return queries, queries if seed % 3 == 0 else keys


def steps_of(queries, keys, m, causal, of_keys):
    if of_keys:
        return queries - max(m - (keys - queries), 0) if causal else queries
    return min(keys, m + BLOCK + keys - queries) if causal else keys


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_each_block_is_listed_once_and_groups_fall_and_rise(seed, of_keys, causal):
    counts = lengths(seed)
    starts = tuple(np.concatenate([[0], one.cumsum()]).astype(np.int32) for one in counts)
    rows, moved = counts[::-1] if of_keys else counts
    room = int(moved.sum()) // (1 + seed) + 1
    heads = (1, 3, 34)[seed % 3]
    given = int(rows.sum()), int(rows.max()), heads, BLOCK, room
    listed = np.asarray(tiles_of(starts, *given, causal=causal, of_keys=of_keys))
    listed = listed.reshape(heads // together(heads), -1, together(heads), 8)
    wanted = {(z, m) for z, count in enumerate(rows) for m in range(0, count, BLOCK)}
    assert not listed[:, len(wanted) :].any()
    by_head = [listed[h // together(heads), : len(wanted), h % together(heads)] for h in range(heads)]
    blocks = by_head[0]
    of = blocks[:, SEQUENCE]
    assert {(z, m) for z, m in blocks[:, [SEQUENCE, FIRST]]} == wanted
    for column, exact in zip(
        (QUERIES, KEYS, START_OF_QUERIES, START_OF_KEYS, START_OF_NUMBERS),
        (*counts, *starts, [(start + 128 * z) // 128 for z, start in enumerate(starts[0])]),
        strict=True,
    ):
        np.testing.assert_array_equal(blocks[:, column], np.asarray(exact)[of])
    for h, other in enumerate(by_head):
        assert (other[:, HEAD] == h).all()
        np.testing.assert_array_equal(np.delete(other, HEAD, 1), np.delete(blocks, HEAD, 1))
    longest_first = sorted(range(len(moved)), key=lambda z: (-moved[z], z))
    behind, groups = 0, {}
    for z in reversed(longest_first):
        groups[z] = behind // room
        behind += min(moved[z], room)
    keys = [
        (-groups[z], (-1) ** (groups[z] + 1) * steps_of(counts[0][z], counts[1][z], m, causal, of_keys))
        for z, m in blocks[:, [SEQUENCE, FIRST]]
    ]
    assert keys == sorted(keys)


def test_heads_that_programs_take_together_divide_all():
    assert [together(heads) for heads in (1, 2, 7, 8, 11, 12, 16, 40, 64)] == [1, 2, 7, 8, 11, 12, 16, 10, 16]
