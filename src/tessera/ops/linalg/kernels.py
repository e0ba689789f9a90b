"""The tile kernels of the family. One source for every backend; dtypes, layouts and block sizes are compiled in.

`K` contiguous or not, transposed or not: a slice of the tensor as stored, turned if need be. The accumulator goes
through the epilogue in registers and is stored once.
"""

from __future__ import annotations

from typing import Any

import tessera as ts

M, N, K, B, G, OFFSETS, FLAGS = ts.dims("M N K B G OFFSETS FLAGS")
PARTS, PADDED = ts.dims("PARTS PADDED")
"""Of sums that programs leave: how many share a tile, and columns with padding."""
BA, RA, CA, PA = ts.dims("BA RA CA PA")
BB, RB, CB, PB = ts.dims("BB RB CB PB")
COPIED = ((BA, RA, CA, PA), (BB, RB, CB, PB))
"""Of each operand that is copied: its batch, the lines of the copy, elements of a line without and with padding."""
JOINED = 128
"""Columns of a tile of what parts are added up to."""
SCALE_BLOCK = 128
"""Terms, and rows or columns, that share one scale of an operand."""


@ts.function
def left(a: Any, batch: Any, m: Any, k: Any) -> Any:
    """Load the (BM, BK) tile of the left operand."""
    ctx = ts.tile.context()
    if ctx.a_batched:
        if ctx.trans_a:
            return a[batch, k : k + ctx.BK, m : m + ctx.BM].T
        return a[batch, m : m + ctx.BM, k : k + ctx.BK]
    if ctx.trans_a:
        return a[k : k + ctx.BK, m : m + ctx.BM].T
    return a[m : m + ctx.BM, k : k + ctx.BK]


@ts.function
def right(b: Any, batch: Any, k: Any, n: Any) -> Any:
    """Load the (BK, BN) tile of the right operand."""
    ctx = ts.tile.context()
    if ctx.b_batched:
        if ctx.trans_b:
            return b[batch, n : n + ctx.BN, k : k + ctx.BK].T
        return b[batch, k : k + ctx.BK, n : n + ctx.BN]
    if ctx.trans_b:
        return b[n : n + ctx.BN, k : k + ctx.BK].T
    return b[k : k + ctx.BK, n : n + ctx.BN]


@ts.function
def step(acc: Any, a: Any, b: Any) -> Any:
    """Add one block of products; with promotion they are summed apart first and then join the accumulator."""
    ctx = ts.tile.context()
    if ctx.promote:
        return acc + ts.tile.mma(a, b, compute=ctx.compute)
    return ts.tile.mma(a, b, acc, compute=ctx.compute)


@ts.function
def terms(m: Any, n: Any, k: Any) -> Any:
    """Return how many terms a tile sums: none for one outside the triangle that is wanted."""
    ctx = ts.tile.context()
    if ctx.triangular == "lower":
        return k if n < m + ctx.BM else 0
    if ctx.triangular == "upper":
        return k if m < n + ctx.BN else 0
    return k


@ts.function
def inside(m: Any, n: Any) -> Any:
    """Return which elements of a tile belong to the triangle that is wanted."""
    ctx = ts.tile.context()
    rows = (m + ts.tile.arange(ctx.BM, dtype=ts.i64))[:, None]
    cols = (n + ts.tile.arange(ctx.BN, dtype=ts.i64))[None, :]
    return rows >= cols if ctx.triangular == "lower" else rows <= cols


def gemm(a: Any, b: Any, out: Any, epilogue: Any) -> Any:
    """Compute `out = epilogue(a·b)`."""
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ctx.acc)
        for k in ts.tile.range(0, terms(m, n, K), ctx.BK):
            acc = step(acc, left(a, 0, m, k), right(b, 0, k, n))
        if ctx.triangular:
            if inside(m, n):
                out[m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n)
        else:
            out[m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n)
    return out


def gemm_in_parts(a: Any, b: Any, parts: Any, out: Any, epilogue: Any) -> Any:
    """Compute `out = epilogue(a·b)` for few tiles of many terms: programs do some each, a second launch adds them up.

    Parts are added in a fixed order, so that the bits are the same on every run.
    """
    ctx = ts.tile.context()
    for p, m, n in ts.tile.grid((PARTS, 1), (M, ctx.BM), (N, ctx.BN)):
        each = (K + ctx.BK * PARTS - 1) // (ctx.BK * PARTS) * ctx.BK
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ctx.acc)
        for k in ts.tile.range(p * each, min(p * each + each, K), ctx.BK):
            acc = step(acc, left(a, 0, m, k), right(b, 0, k, n))
        parts[p, m : m + ctx.BM, n : n + ctx.BN] = acc
    for m, n in ts.tile.grid((M, 1), (N, JOINED)):
        total = ts.tile.zeros((1, JOINED), ctx.acc)
        for p in ts.tile.range(0, PARTS, ctx.together):
            total = total + ts.tile.sum(parts[p : p + ctx.together, m : m + 1, n : n + JOINED], axis=0)
        out[m : m + 1, n : n + JOINED] = epilogue(total, m, n)
    return out


def gemm_turned(a: Any, b: Any, out: Any, epilogue: Any) -> Any:
    """Compute `out = epilogue(a·b)` by way of the transposes: few rows of `a` are then columns of the matrix units.

    Their instructions take 64 rows at a time, but any multiple of 8 columns.
    """
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        acc = ts.tile.zeros((ctx.BN, ctx.BM), ctx.acc)
        for k in ts.tile.range(0, K, ctx.BK):
            acc = step(acc, right(b, 0, k, n).T, left(a, 0, m, k).T)
        out[m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc.T, m, n)
    return out


def gemm_batched(a: Any, b: Any, out: Any, epilogue: Any) -> Any:
    """Compute `out[i] = epilogue(a[i]·b[i])`; an operand without a batch is the same for all."""
    ctx = ts.tile.context()
    for i, m, n in ts.tile.grid((B, 1), (M, ctx.BM), (N, ctx.BN)):
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ctx.acc)
        for k in ts.tile.range(0, terms(m, n, K), ctx.BK):
            acc = step(acc, left(a, i, m, k), right(b, i, k, n))
        if ctx.triangular:
            if inside(m, n):
                out[i, m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n, i)
        else:
            out[i, m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n, i)
    return out


@ts.function
def scaled_step(acc: Any, product: Any, scale_a: Any, scale_b: Any, m: Any, n: Any, k: Any) -> Any:
    """Add products of one block of K, times the scales of that block."""
    ctx = ts.tile.context()
    at = k // SCALE_BLOCK
    if ctx.scale_a == "row":
        product = product * scale_a[m : m + ctx.BM, at][:, None]
    elif ctx.scale_a == "block":
        product = product * scale_a[m // SCALE_BLOCK, at]
    if ctx.scale_b == "col":
        product = product * scale_b[at, n : n + ctx.BN][None, :]
    elif ctx.scale_b == "block":
        product = product * scale_b[at, n // SCALE_BLOCK]
    return acc + product


def gemm_scaled(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any, epilogue: Any) -> Any:
    """Compute `out = epilogue(Σ over blocks of K: scales · a·b)`."""
    ctx = ts.tile.context()
    for m, n in ts.tile.grid((M, ctx.BM), (N, ctx.BN)):
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ctx.acc)
        for k in ts.tile.range(0, K, ctx.BK):
            product = ts.tile.mma(left(a, 0, m, k), right(b, 0, k, n))
            acc = scaled_step(acc, product, scale_a, scale_b, m, n, k)
        out[m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n)
    return out


def gemm_grouped(a: Any, b: Any, offsets: Any, out: Any, epilogue: Any) -> Any:
    """Compute `out[rows of g] = epilogue(a[rows of g]·b[g])` for every group `g`.

    Each group takes as many tiles of rows as it needs; together they are at most one for each group more than the
    rows fill. A program finds its group by counting the tiles before it.
    """
    ctx = ts.tile.context()
    for t, n in ts.tile.grid((M + G * ctx.BM, ctx.BM), (N, ctx.BN)):
        number = ts.tile.arange(ctx.groups)
        sizes = offsets[1 : ctx.groups + 1] - offsets[0 : ctx.groups]
        tiles = ts.tile.where(number < G, (sizes + (ctx.BM - 1)) // ctx.BM, 0)
        last = ts.tile.cumsum(tiles)
        tile = (t // ctx.BM).to(ts.i32)
        group = ts.tile.sum((last <= tile).to(ts.i32))
        before: Any = ts.tile.max(ts.tile.where(last <= tile, last, 0))
        # Past the last tile, `group` is at least G: nothing is summed and the end is read as 0, so nothing is stored.
        m = t - before.to(ts.i64) * ctx.BM + offsets[group].to(ts.i64)
        end = offsets[group + 1].to(ts.i64)
        acc = ts.tile.zeros((ctx.BM, ctx.BN), ctx.acc)
        for k in ts.tile.range(0, K if group < G else 0, ctx.BK):
            acc = step(acc, left(a, 0, m, k), right(b, group, k, n))
        if (m + ts.tile.arange(ctx.BM, dtype=ts.i64) < end)[:, None]:
            out[m : m + ctx.BM, n : n + ctx.BN] = epilogue(acc, m, n)
    return out


@ts.function
def tiles_of(lines: Any, padded: Any) -> Any:
    """Return how many tiles the lines of a copy take."""
    ctx = ts.tile.context()
    return (lines + (ctx.BM - 1)) // ctx.BM * ((padded + (ctx.BN - 1)) // ctx.BN)


@ts.function
def place_of(tile: Any, count: Any, padded: Any) -> Any:
    """Return the matrix, the line and the element of a line where a tile of a copy begins."""
    ctx = ts.tile.context()
    wide = (padded + (ctx.BN - 1)) // ctx.BN
    place = tile % tiles_of(count, padded)
    return tile // tiles_of(count, padded), place // wide * ctx.BM, place % wide * ctx.BN


@ts.function
def read_tile(source: Any, matrix: Any, r: Any, c: Any, across: Any, batched: Any) -> Any:
    """Load one tile of an operand; what pads a line is read past the end of the operand: 0."""
    ctx = ts.tile.context()
    if batched:
        if across:
            return source[matrix, c : c + ctx.BN, r : r + ctx.BM].T
        return source[matrix, r : r + ctx.BM, c : c + ctx.BN]
    if across:
        return source[c : c + ctx.BN, r : r + ctx.BM].T
    return source[r : r + ctx.BM, c : c + ctx.BN]


@ts.function
def write_tile(lines: Any, values: Any, matrix: Any, r: Any, c: Any, batched: Any) -> None:
    """Store one tile of a copy."""
    ctx = ts.tile.context()
    if batched:
        lines[matrix, r : r + ctx.BM, c : c + ctx.BN] = values
    else:
        lines[r : r + ctx.BM, c : c + ctx.BN] = values


@ts.function
def copy_tile(source: Any, lines: Any, tile: Any, count: Any, padded: Any, across: Any, batched: Any) -> None:
    """Copy one tile."""
    matrix, r, c = place_of(tile, count, padded)
    write_tile(lines, read_tile(source, matrix, r, c, across, batched), matrix, r, c, batched)


def copy_one(a: Any, x: Any) -> Any:
    """Copy an operand, or a batch of them, to padded lines."""
    ctx = ts.tile.context()
    batch = BA if ctx.batched_a else 1
    for (t,) in ts.tile.grid((batch * tiles_of(RA, PA), 1)):
        copy_tile(a, x, t, RA, PA, ctx.across_a, ctx.batched_a)
    return x


def copy_two(a: Any, b: Any, x: Any, y: Any) -> Any:
    """Copy both operands to padded lines, the left one's tiles first: one launch costs less than two."""
    ctx = ts.tile.context()
    before = (BA if ctx.batched_a else 1) * tiles_of(RA, PA)
    for (t,) in ts.tile.grid((before + (BB if ctx.batched_b else 1) * tiles_of(RB, PB), 1)):
        if t < before:
            copy_tile(a, x, t, RA, PA, ctx.across_a, ctx.batched_a)
        else:
            copy_tile(b, y, t - before, RB, PB, ctx.across_b, ctx.batched_b)
    return x, y
