"""Kernels of attention by an online softmax."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.attn.drops import SQUARE, growth
from tessera.ops.attn.mods import LISTED, MB, NB, Mods
from tessera.ops.attn.packed import COLUMNS, FIRST, HEAD, KEYS, QUERIES, SEQUENCE, START_OF_KEYS, START_OF_QUERIES

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
U = ts.dtype_var("U", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
B, H, G, M, N, D, E, P, R, W = ts.dims("B H G M N D E P R W")
INF = float("inf")
LOG2E = 1.4426950408889634


@ts.function
def scaled(scores: Any, scale: Any, softcap: Any, caps: Any, plain: Any) -> Any:
    """Return scores by their products, scaled and capped; where they are plain, `power` scales them."""
    if plain:
        return scores
    return bent(scores * scale.to(scores.dtype), softcap, caps)


@ts.function
def power(scores: Any, base: Any, scale: Any, plain: Any) -> Any:
    """Return powers of e of scores less `base`; of plain ones, both before they are scaled, in one multiply-add."""
    if plain:
        step = (scale * LOG2E).to(scores.dtype)
        return ts.tile.exp2(scores * step - base * step)
    return ts.tile.exp(scores - base)


@ts.function
def bent(scores: Any, softcap: Any, caps: Any) -> Any:
    """Return scores that a cap holds between its negative and itself."""
    if caps:
        return ts.tile.tanh(scores * (1.0 / softcap).to(scores.dtype)) * softcap.to(scores.dtype)
    return scores


@ts.function
def seen(scores: Any, queries: Any, keys: Any, last: Any, before: Any, after: Any, causal: Any, windowed: Any) -> Any:
    """Return scores `(BM, BN)` with -inf where a query does not see a key.

    Args:
        scores: of queries and keys.
        queries: the first query's place among the keys: queries are aligned to the last key.
        keys: the first key.
        last: the number of keys.
        before: keys before its own place that a query sees.
        after: keys after it.
        causal: whether no query sees keys after its place.
        windowed: whether `before` and `after` count.
    """
    if windowed:
        steps = ts.tile.arange(scores.shape[1])[None, :] - ts.tile.arange(scores.shape[0])[:, None]
        return ts.tile.where(are_near(steps, queries, keys, before, after), only_keys(scores, keys, last, 1), -INF)
    if causal:
        return ts.tile.causal_mask(scores, queries, keys)
    return only_keys(scores, keys, last, 1)


@ts.function
def are_near(steps: Any, queries: Any, keys: Any, before: Any, after: Any) -> Any:
    """Return which keys are no further from queries than a window reaches, by their distances in a block."""
    distance = steps.to(ts.i64) + (keys - queries)
    return (distance >= -before) & (distance <= after)


@ts.function
def only_keys(scores: Any, keys: Any, last: Any, axis: Any) -> Any:
    """Return scores with -inf behind the last key."""
    inside = keys + ts.tile.arange(scores.shape[axis]) < last
    return ts.tile.where(inside[None, :] if axis else inside[:, None], scores, -INF)


@ts.function
def away(steps: Any, queries: Any, keys: Any, acc: Any) -> Any:
    """Return how far keys are before queries, as negative numbers, or as negative ones after them: -|distance|."""
    return -ts.tile.abs((steps.to(ts.i64) + (keys - queries)).to(acc))


@ts.function
def biased(scores: Any, bias: Any, slopes: Any, b: Any, h: Any, m: Any, n: Any, place: Any) -> Any:
    """Return scores `(BM, BN)` of queries from `m` on and keys from `n` on, with what a bias and distances add."""
    rows, columns = scores.shape
    if bias is not None:
        scores = scores + bias[b, h, m : m + rows, n : n + columns].to(scores.dtype)
    if slopes is not None:
        steps = ts.tile.arange(columns)[None, :] - ts.tile.arange(rows)[:, None]
        scores = scores + away(steps, place, n, scores.dtype) * slopes[h]
    return scores


@ts.function
def present(top: Any, empties: Any) -> Any:
    """Return what is taken from scores: the largest, 0 where there is none above -inf."""
    return ts.tile.where(top == -INF, 0.0, top) if empties else top


@ts.function
def tile_of(tiles: Any, x: Any, y: Any, last: Any) -> Any:
    """Return the sequence, the head and the first row of a place of the grid; `packed_tiles` says what `tiles` are."""
    if tiles is None:
        return x, y, last
    return tiles[last, SEQUENCE].to(ts.i64), tiles[last, HEAD].to(ts.i64), tiles[last, FIRST].to(ts.i64)


@ts.function
def of_tile(tiles: Any, at: Any, column: Any, otherwise: Any) -> Any:
    """Return what a packed sequence has of its own; in a batch all have the same."""
    return tiles[at, column].to(ts.i64) if tiles is not None else otherwise


@ts.function
def modified(scores: Any, mods: Any, b: Any, h: Any, rows: Any, columns: Any) -> Any:
    """Return scores as the user's function changes them."""
    return mods.score(scores, b, h, rows, columns).to(scores.dtype) if mods.score is not None else scores


@ts.function
def allowed(scores: Any, mods: Any, whole: Any, b: Any, h: Any, rows: Any, columns: Any) -> Any:
    """Return scores with -inf where the user's function is false, which it is nowhere in a block that is seen whole."""
    if mods.mask is None:
        return scores
    keeps = mods.mask(None, b, h, rows, columns)
    return ts.tile.where(keeps if whole is None else whole | keeps, scores, -INF)


@ts.function
def square_row(mods: Any, b: Any, h: Any, q0: Any, z: Any, m: Any, heads: Any, queries: Any, sequences: Any) -> Any:
    """Return the row of dropout's squares in which query `m` is, counted through all heads; None without dropout.

    A packed sequence, of which there are `sequences`, begins with a row of squares of its own.
    """
    if mods.drop is None:
        return None
    if sequences is None:
        return (b * heads + h) * ts.cdiv(queries, SQUARE) + m // SQUARE
    return h * (ts.cdiv(queries, SQUARE) + sequences) + q0 // SQUARE + z + m // SQUARE


@ts.function
def dropped(weights: Any, mods: Any, row: Any, n: Any) -> Any:
    """Return weights of keys from `n` on with zeros for those that dropout leaves out; the others do not grow."""
    if mods.drop is None:
        return weights
    return ts.tile.where(mods.drop(row, n, weights.shape[0], weights.shape[1], False), weights, 0.0)


@ts.function
def grown(x: Any, mods: Any) -> Any:
    """Return sums of weights that dropout kept as large as those of all."""
    return x if mods.drop is None else x * growth(mods.drop).to(x.dtype)


@ts.function
def finished(made: Any, mods: Any, b: Any, h: Any, m: Any, heads: Any) -> Any:
    """Return results of queries from `m` on as an epilogue changes them, in which heads are a batch of matrices."""
    return made if mods.finish is None else mods.finish(made, m, 0, b * heads + h)


@ts.function
def listed(counts: Any, b: Any, h: Any, m: Any) -> Any:
    """Return how many keys, or queries, the listed blocks have."""
    return counts[b, h, m // LISTED].to(ts.i64) * LISTED


@ts.function
def is_whole(partials: Any, b: Any, h: Any, m: Any, i: Any) -> Any:
    """Return whether what stands at `i` in the listed blocks is of one that is seen whole; None without lists."""
    return None if partials is None else i // LISTED >= partials[b, h, m // LISTED].to(ts.i64)


@ts.function
def places(first: Any, count: Any) -> Any:
    """Return the numbers of `count` queries or keys for a user's function."""
    return first.to(ts.i32) + ts.tile.arange(count)


@ts.function
def nth(blocks: Any, b: Any, h: Any, m: Any, i: Any) -> Any:
    """Return where the keys are that stand at `i` when the listed blocks stand after each other."""
    return blocks[b, h, m // LISTED, i // LISTED].to(ts.i64) * LISTED + i % LISTED


@ts.function
def put_rows(out: Any, b: Any, h: Any, first: Any, left: Any, rows: Any) -> None:
    """Store rows; of a packed sequence those that are `left`, as another one follows."""
    count = rows.shape[0]
    if left is None:
        out[b, h, first : first + count, :] = rows
    else:
        if (ts.tile.arange(count) < left)[:, None]:
            out[b, h, first : first + count, :] = rows


@ts.function
def put_numbers(out: Any, b: Any, h: Any, first: Any, left: Any, numbers: Any) -> None:
    """Store a number for each row; of a packed sequence for those that are `left`."""
    count = numbers.shape[0]
    if left is None:
        out[b, h, first : first + count] = numbers
    else:
        if ts.tile.arange(count) < left:
            out[b, h, first : first + count] = numbers


@ts.kernel
def forward(
    q: ts.Tensor[B, H, M, D, T],
    k: ts.Tensor[B, G, N, D, T],
    v: ts.Tensor[B, G, N, E, T],
    bias: ts.Tensor[B, H, M, N, U] | None,
    slopes: ts.Tensor[H, S] | None,
    sinks: ts.Tensor[H, S] | None,
    tiles: ts.Tensor[W, COLUMNS, ts.i32] | None,
    partials: ts.Tensor[B, H, MB, ts.i32] | None,
    counts: ts.Tensor[B, H, MB, ts.i32] | None,
    blocks: ts.Tensor[B, H, MB, NB, ts.i32] | None,
    mods: Mods[B * H, M, E],
    out: ts.Tensor[B, H, M, E, T],
    lse: ts.Tensor[B, H, M, S] | None,
    scale: F64,
    softcap: F64,
    before: I64,
    after: I64,
    sequences: I64,
    causal: Constant,
    windowed: Constant,
    caps: Constant,
    empties: Constant,
    plain: Constant,
    acc: Constant,
    BM: Constant,
    BN: Constant,
):
    """Softmax(q·kᵀ·scale + bias)·v, blocks of keys after each other.

    `empties` says that a query may see no key: its row is zeros, and its logsumexp -inf. `plain` says that scores are
    products times a positive scale, and nothing else. Sequences may be packed in one row of the batch: `tiles` lists
    their blocks of queries. `blocks` lists the blocks of keys that a
    block of queries sees, first the `partials` of which it sees a part.
    """
    packed = tiles is not None
    for x, y, last in ts.tile.grid(
        (1 if packed else B, 1), (1 if packed else H, 1), (W if packed else M, 1 if packed else BM)
    ):
        z, h, m = tile_of(tiles, x, y, last)
        b = 0 if packed else z
        group = h // (H // G)
        keys, queries = of_tile(tiles, last, KEYS, N), of_tile(tiles, last, QUERIES, M)
        q0, k0 = of_tile(tiles, last, START_OF_QUERIES, 0), of_tile(tiles, last, START_OF_KEYS, 0)
        rows = q[b, h, q0 + m : q0 + m + BM, :]
        total = ts.tile.zeros((BM, E), acc)
        tops = ts.tile.full((BM,), -INF, acc)
        sums = ts.tile.zeros((BM,), acc)
        place = m + (keys - queries)
        row = square_row(mods, b, h, q0, z, m, H, M, sequences if packed else None)
        start = max(place - before, 0) // BN * BN if windowed else 0
        end = min(keys, place + BM + after) if windowed else min(keys, place + BM) if causal else keys
        if packed:
            end = end if m < queries else 0
        if blocks is not None:
            start, end = 0, listed(counts, b, h, m)
        for i in ts.tile.range(start, end, BN):
            n = i if blocks is None else nth(blocks, b, h, m, i)
            scores = ts.tile.mma(rows, k[b, group, k0 + n : k0 + n + BN, :].T)
            scores = scaled(scores, scale, softcap, caps, plain)
            scores = biased(scores, bias, slopes, b, h, m, n, place)
            these, those = places(m, BM)[:, None], places(n, BN)[None, :]
            scores = modified(scores, mods, z, h, these, those)
            scores = seen(scores, place, n, keys, before, after, causal, windowed)
            scores = allowed(scores, mods, is_whole(partials, b, h, m, i), z, h, these, those)
            above = ts.tile.maximum(tops, ts.tile.row_max(scores))
            base = present(above, empties)
            kept = power(tops, base, scale, plain)
            powers = power(scores, base[:, None], scale, plain)
            sums = kept * sums + ts.tile.row_sum(powers)
            values = v[b, group, k0 + n : k0 + n + BN, :]
            powers = dropped(powers, mods, row, n)
            total = ts.tile.mma(powers.to(q.dtype), values, kept[:, None] * total)
            tops = above
        tops = tops * scale.to(acc) if plain else tops
        if sinks is not None:
            most_of = ts.tile.maximum(tops, sinks[h])
            kept = ts.tile.exp(tops - most_of)
            sums = sums * kept + ts.tile.exp(sinks[h] - most_of)
            total = total * kept[:, None]
            tops = most_of
        sums_or_one = ts.tile.where(sums == 0.0, 1.0, sums) if empties else sums
        left = queries - m if packed else None
        made = finished(grown(total, mods) / sums_or_one[:, None], mods, b, h, m, H)
        put_rows(out, b, h, q0 + m, left, made)
        if lse is not None:
            put_numbers(lse, b, h, q0 + m, left, tops + ts.tile.log(sums))


@ts.kernel
def parts_forward(
    q: ts.Tensor[B, G, R, D, T],
    k: ts.Tensor[B, G, N, D, T],
    v: ts.Tensor[B, G, N, E, T],
    out: ts.Tensor[P, B, G, R, E, S],
    lse: ts.Tensor[P, B, G, R, S],
    queries: I64,
    each: I64,
    scale: F64,
    softcap: F64,
    causal: Constant,
    caps: Constant,
    plain: Constant,
    acc: Constant,
    BM: Constant,
    BN: Constant,
):
    """The same of few queries, by `each` keys in each of P parts: rows are queries of all heads that share keys."""
    ts.assume(each % BN == 0)
    for p, b, g in ts.tile.grid((P, 1), (B, 1), (G, 1)):
        rows = q[b, g, 0:BM, :]
        total = ts.tile.zeros((BM, E), acc)
        tops = ts.tile.full((BM,), -INF, acc)
        sums = ts.tile.zeros((BM,), acc)
        places = ts.tile.arange(BM, dtype=ts.i64)[:, None] % queries + (N - queries)
        for n in ts.tile.range(p * each, min((p + 1) * each, N), BN):
            scores = ts.tile.mma(rows, k[b, g, n : n + BN, :].T)
            scores = scaled(scores, scale, softcap, caps, plain)
            if causal:
                scores = ts.tile.where(n + ts.tile.arange(BN, dtype=ts.i64)[None, :] > places, -INF, scores)
            scores = only_keys(scores, n, N, 1)
            above = ts.tile.maximum(tops, ts.tile.row_max(scores))
            base = present(above, True)
            kept = power(tops, base, scale, plain)
            powers = power(scores, base[:, None], scale, plain)
            sums = kept * sums + ts.tile.row_sum(powers)
            total = ts.tile.mma(powers.to(q.dtype), v[b, g, n : n + BN, :], kept[:, None] * total)
            tops = above
        out[p, b, g, 0:BM, :] = total / ts.tile.where(sums == 0.0, 1.0, sums)[:, None]
        lse[p, b, g, 0:BM] = (tops * scale.to(acc) if plain else tops) + ts.tile.log(sums)
