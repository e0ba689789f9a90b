"""Packed sequences: the blocks that programs take, in an order in which all have as much to do, and numbers of rows.

With a block of rows for each place up to the longest sequence, programs of short ones would have nothing to do, and
those that got long ones would end last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import tessera as ts
from tessera.ops.annotations import I64, Constant
from tessera.ops.refusals import refused
from tessera.ops.steps import like

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
H, L, M, E, W, Z = ts.dims("H L M E W Z")
INF = float("inf")
COLUMNS = 8
"""Numbers of a block."""
SEQUENCE, HEAD, FIRST, QUERIES, KEYS, START_OF_QUERIES, START_OF_KEYS, START_OF_NUMBERS = range(8)
"""The sequence and the head, the first row of the block, the sequence's queries and keys, where these begin, and
numbers of its queries, the last in units of `ROOM`."""
ROOM = 128
"""Numbers of the queries of each sequence begin at a multiple of this, which blocks divide: they are fetched whole."""
_MOST_TOGETHER = 16
"""Heads whose blocks programs take at the same time: those of a head share what these have in the L2 cache."""
_SHARED_BYTES = 18 * 2**20
"""What programs read again and again of the sequences of a group, which the L2 cache holds."""


@ts.function
def number_of(starts: Any, z: Any) -> Any:
    """Return where the numbers of the queries of a sequence begin."""
    return (starts[z].to(ts.i64) + z * ROOM) // ROOM * ROOM


@ts.function
def lengths(starts: Any, first: Any, count: Any) -> Any:
    """Return the rows of some sequences; behind the last one they mean nothing."""
    return starts[first + 1 : first + 1 + count] - starts[first : first + count]


@ts.kernel
def packed_groups(
    starts: ts.Tensor[Z + 1, ts.i32], groups: ts.Tensor[Z, ts.i32], room: I64, BR: Constant = 32, BZ: Constant = 128
):
    """Number groups of sequences, the shortest ones' first, whose rows that programs go over are about `room`.

    `starts` says where sequences begin in these rows. One that is longer than `room` is a group alone.
    """
    for (z,) in ts.tile.grid((Z, BR)):
        own, places = lengths(starts, z, BR)[:, None], (z.to(ts.i32) + ts.tile.arange(BR))[:, None]
        behind = ts.tile.zeros((BR,), ts.i32)
        for s in ts.tile.range(0, Z, BZ):
            others, theirs = lengths(starts, s, BZ)[None, :], (s.to(ts.i32) + ts.tile.arange(BZ))[None, :]
            is_behind = ((others < own) | ((others == own) & (theirs > places))) & (theirs < Z)
            rows = ts.tile.minimum(others, room.to(ts.i32))
            behind = behind + ts.tile.sum(ts.tile.where(is_behind, rows, 0), 1)
        groups[z : z + BR] = behind // room.to(ts.i32)


@ts.function
def blocks_above(steps: Any, rows: Any, most: Any, block: Any, causal: Any, of_keys: Any) -> Any:
    """Return how many blocks of sequences go over more than `steps` rows of the other kind.

    Block `i` of a sequence goes over `min(most, (i + 1)·block + shift)` of them where it is causal: blocks of keys are
    counted from the last one. All go over `most` where it is not.
    """
    blocks = (rows + (block - 1)) // block
    below = ts.tile.where(most > steps, 0, blocks)
    if causal:
        shift = rows - blocks * block if of_keys else most - rows
        below = ts.tile.maximum(below, ts.tile.minimum(ts.tile.maximum((steps - shift) // block, 0), blocks))
    return blocks - below


@ts.kernel
def packed_tiles(
    starts_q: ts.Tensor[Z + 1, ts.i32],
    starts_k: ts.Tensor[Z + 1, ts.i32],
    groups: ts.Tensor[Z, ts.i32],
    tiles: ts.Tensor[W, COLUMNS, ts.i32],
    heads: I64,
    share: I64,
    longest: I64,
    causal: Constant,
    of_keys: Constant,
    block: Constant,
    BR: Constant = 32,
    BZ: Constant = 128,
):
    """List the blocks of queries, or of keys, of all sequences and heads, group after group; behind them empty blocks.

    Blocks are listed for `share` heads after each other, then for the next ones. Those of a group that have most steps
    are its first ones, or in every other group its last: so programs that take blocks in turn, there and back, have as
    much to do. The last group, of the shortest sequences, ends with the least.
    """
    for z, r in ts.tile.grid((Z, 1), (ts.cdiv(longest, block), BR)):
        q0, k0 = starts_q[z], starts_k[z]
        queries, keys = starts_q[z + 1] - q0, starts_k[z + 1] - k0
        rows, most = (keys, queries) if of_keys else (queries, keys)
        own = ts.cdiv(rows, block)
        places = r.to(ts.i32) + ts.tile.arange(BR)
        steps = ts.tile.full((BR,), most, ts.i32)
        if causal:
            shift = rows - own * block if of_keys else most - rows
            steps = ts.tile.minimum(steps, (places + 1) * block + shift)
        group = groups[z]
        falls = group % 2 == 0
        before = ts.tile.zeros((BR,), ts.i32)
        total = ts.tile.zeros((BZ,), ts.i32)
        for s in ts.tile.range(0, Z, BZ):
            sequences = s.to(ts.i32) + ts.tile.arange(BZ)
            count_q, count_k = lengths(starts_q, s, BZ), lengths(starts_k, s, BZ)
            others, tops = (count_k, count_q) if of_keys else (count_q, count_k)
            others = ts.tile.where(sequences < Z, others, 0)
            blocks = (others + (block - 1)) // block
            # A block stands behind those of its group that have more steps, or fewer, and as many of earlier sequences.
            earlier = (sequences < z).to(ts.i32)
            least = steps[:, None] - ts.tile.where(falls, earlier, 1 - earlier)[None, :]
            above = blocks_above(least, others[None, :], tops[None, :], block, causal, of_keys)
            inside = ts.tile.where(falls, above, blocks[None, :] - above)
            theirs = groups[s : s + BZ][None, :]
            ahead = ts.tile.where(theirs == group, inside, ts.tile.where(theirs > group, blocks[None, :], 0))
            before = before + ts.tile.sum(ahead, 1)
            total = total + blocks
        alike = blocks_above(steps - 1, rows, most, block, causal, of_keys)
        place = before + places - (own - alike)
        first = (own - 1 - places if of_keys else places) * block
        listed, spare = W // heads, ts.tile.sum(total.to(ts.i64)) + z
        for h in ts.tile.range(heads):
            start = h // share * (listed * share) + h % share
            at = (place.to(ts.i64) * share + start).to(ts.i32)
            if places < own:
                tiles[at, SEQUENCE] = ts.tile.full((BR,), z.to(ts.i32), ts.i32)
                tiles[at, HEAD] = ts.tile.full((BR,), h.to(ts.i32), ts.i32)
                tiles[at, FIRST] = first
                tiles[at, QUERIES] = ts.tile.full((BR,), queries, ts.i32)
                tiles[at, KEYS] = ts.tile.full((BR,), keys, ts.i32)
                tiles[at, START_OF_QUERIES] = ts.tile.full((BR,), q0, ts.i32)
                tiles[at, START_OF_KEYS] = ts.tile.full((BR,), k0, ts.i32)
                tiles[at, START_OF_NUMBERS] = ts.tile.full((BR,), (number_of(starts_q, z) // ROOM).to(ts.i32), ts.i32)
            if (r == 0) & (spare < listed):
                tiles[spare * share + start, 0:COLUMNS] = ts.tile.zeros((COLUMNS,), ts.i32)


@ts.function
def taken(grad: Any, out: Any, grad_lse: Any, b: Any, h: Any, first: Any, count: Any, acc: Any) -> Any:
    """Return what is taken from the gradients of weights of rows: sum(grad·out), less that of their logsumexp."""
    found = ts.tile.sum(grad[b, h, first : first + count, :].to(acc) * out[b, h, first : first + count, :].to(acc), 1)
    return found if grad_lse is None else found - grad_lse[b, h, first : first + count]


@ts.kernel
def packed_deltas(
    grad: ts.Tensor[1, H, M, E, T],
    out: ts.Tensor[1, H, M, E, T],
    grad_lse: ts.Tensor[1, H, M, S] | None,
    lse: ts.Tensor[1, H, M, S],
    starts: ts.Tensor[Z + 1, ts.i32],
    bases: ts.Tensor[1, H, L, S],
    delta: ts.Tensor[1, H, L, S],
    longest: I64,
    acc: Constant,
    BM: Constant = ROOM,
):
    """What is `taken` for each row, and its logsumexp, from `number_of` on.

    Behind a sequence's last row the logsumexp is infinite, so that the rows that stand there have no weights.
    """
    for z, h, m in ts.tile.grid((Z, 1), (H, 1), (longest + 2 * BM, BM)):
        q0, queries = starts[z].to(ts.i64), (starts[z + 1] - starts[z]).to(ts.i64)
        first, after = number_of(starts, z), number_of(starts, z + 1)
        if first + m < after:
            found = taken(grad, out, grad_lse, 0, h, q0 + m, BM, acc)
            inside = m + ts.tile.arange(BM) < queries
            bases[0, h, first + m : first + m + BM] = ts.tile.where(inside, lse[0, h, q0 + m : q0 + m + BM], INF)
            delta[0, h, first + m : first + m + BM] = ts.tile.where(inside, found, 0.0)


def tiles_of(
    starts: tuple[Any, Any],
    rows: int,
    longest: int,
    heads: int,
    block: int,
    room: int,
    *,
    causal: bool,
    of_keys: bool,
) -> Any:
    """Return the blocks of packed sequences that programs take, `(W, COLUMNS)`.

    Args:
        starts: where sequences begin in queries and keys.
        rows: all queries, or all keys.
        longest: those of the longest sequence.
        heads: heads that have blocks of their own.
        block: rows of a block.
        room: rows that programs go over of which the L2 cache holds what they read.
        causal: whether a query sees no key after its place.
        of_keys: whether blocks are of keys.
    """
    sequences = int(starts[0].shape[0]) - 1
    groups = like(starts[0], (sequences,), ts.i32)
    packed_groups(starts[0 if of_keys else 1], groups, room)
    tiles = like(starts[0], ((rows // block + sequences) * heads, COLUMNS), ts.i32)
    given = {"causal": causal, "of_keys": of_keys, "block": block}
    packed_tiles(*starts, groups, tiles, heads, together(heads), longest, **given)
    return tiles


def together(heads: int) -> int:
    """Return how many heads' blocks programs take at the same time: a divisor of their number."""
    return next(count for count in range(min(heads, _MOST_TOGETHER), 0, -1) if heads % count == 0)


def room_for(bytes_of_row: int) -> int:
    """Return of how many rows the L2 cache holds what programs read, by the bytes of one in all heads together."""
    return max(1, _SHARED_BYTES // bytes_of_row)


def lengths_between(starts: Any, name: str, total: int) -> Any:
    """Return how long the parts are whose begins are given, of an array on the host.

    Args:
        starts: where each part begins, and the end of the last one.
        name: the argument's.
        total: where the last one ends.

    Raises:
        CallError: `bad-argument` where they do not go from 0 to there, or decrease.
    """
    found = np.asarray(starts).astype(int)
    lengths = np.diff(found)
    if found[0] != 0 or found[-1] != total or (lengths < 0).any():
        help = f"it goes from 0 to {total} and does not decrease"
        raise refused(f"{name} goes from {found[0]} to {found[-1]}", "bad-argument", help)
    return lengths
