"""Kernels of `embedding`: rows are gathered; their gradients are added up in the order of the tokens, as in a scatter.

Tokens are sorted by their rows first, by counting digits from the lowest to the highest: the order of equal ones stays.
Rows that do not count are sorted to the end, under the number of rows.

On CPUs tokens are taken in turn, by one program for some columns: that costs less than to sort them.
"""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops.annotations import I64, Constant

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
E = ts.dtype_var("E", ts.bf16, ts.f16, ts.f32, ts.f64, ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
I = ts.dtype_var("I", ts.i64, ts.i32)  # noqa: E741
A = ts.dtype_var("A", ts.bf16, ts.f16, ts.f32, ts.f64, ts.i8, ts.u8, ts.i16, ts.i32, ts.i64)
V, N, L, M, C, D = ts.dims("V N L M C D")

DIGIT = 8
"""Bits of a digit that tokens are sorted by. Counts of the lowest digit come first, one for each block of tokens."""
BLOCK = 128
"""Tokens of a block."""
MASK = 2**DIGIT - 1


@ts.kernel
def gather(
    index: ts.Tensor[L, I], weight: ts.Tensor[V, N, T], out: ts.Tensor[L, N, T], BL: Constant = 4, BN: Constant = 256
):
    """Copy the row of each token; rows that there are not read as zeros."""
    for t, n in ts.tile.grid((L, BL), (N, BN)):
        out[t : t + BL, n : n + BN] = weight[index[t : t + BL], n : n + BN]


@ts.kernel
def count(
    index: ts.Tensor[L, I],
    keys: ts.Tensor[L, ts.i32] | None,
    counts: ts.Tensor[D, C, ts.i32],
    rows: I64,
    padding: I64,
    shift: Constant,
    BL: Constant = BLOCK,
):
    """Count the tokens of each digit in each block; keys are made of the index in the first pass."""
    for t in ts.tile.grid((L, BL)):
        at = t + ts.tile.arange(BL, dtype=ts.i64)
        key = index[t : t + BL]
        if keys is not None:
            wide = key.to(ts.i64)
            counted = (wide >= 0) & (wide < rows) & (wide != padding)
            key = ts.tile.where(counted, wide, rows).to(ts.i32)
            keys[t : t + BL] = key
        if at < L:
            ts.tile.atomic_add(counts[(key >> shift) & MASK, t // BL], 1)


@ts.kernel
def places(counts: ts.Tensor[D, C, ts.i32], totals: ts.Tensor[D, ts.i32], BC: Constant = 1024):
    """Replace the counts of each digit by the sums of those before them, and add them up."""
    for d in ts.tile.grid((D, 1)):
        before = ts.tile.zeros((1,), ts.i32)
        for c in ts.tile.range(0, C, BC):
            some = counts[d, c : c + BC]
            sums = ts.tile.cumsum(some)
            counts[d, c : c + BC] = before + sums - some
            before = before + ts.tile.sum(some)
        totals[d : d + 1] = before


@ts.kernel
def starts(totals: ts.Tensor[D, ts.i32], BD: Constant = MASK + 1):
    """Replace what each digit adds up to by the sum of those before it."""
    for _ in ts.tile.grid((1, 1)):
        some = totals[0:BD]
        totals[0:BD] = ts.tile.cumsum(some) - some


@ts.kernel
def move(
    keys: ts.Tensor[L, ts.i32],
    tokens: ts.Tensor[L, ts.i32] | None,
    counts: ts.Tensor[D, C, ts.i32],
    totals: ts.Tensor[D, ts.i32],
    to_keys: ts.Tensor[L, ts.i32],
    to_tokens: ts.Tensor[L, ts.i32],
    shift: Constant,
    BL: Constant = BLOCK,
):
    """Put each token after those of lower digits, and of its own digit that stand before it."""
    for t in ts.tile.grid((L, BL)):
        inside = t + ts.tile.arange(BL, dtype=ts.i64) < L
        key = keys[t : t + BL]
        token = (t + ts.tile.arange(BL, dtype=ts.i64)).to(ts.i32) if tokens is None else tokens[t : t + BL]
        digit = (key >> shift) & MASK
        earlier = ts.tile.arange(BL)[None, :] < ts.tile.arange(BL)[:, None]
        rank = ts.tile.sum(((digit[:, None] == digit[None, :]) & earlier).to(ts.i32), 1)
        if inside:
            at = totals[digit] + counts[digit, t // BL] + rank
            to_keys[at] = key
            to_tokens[at] = token


@ts.kernel
def bounds(
    keys: ts.Tensor[L, ts.i32], first: ts.Tensor[V, ts.i32] | None, last: ts.Tensor[V, ts.i32], BL: Constant = 256
):
    """Find where the tokens of each row begin and end."""
    for t in ts.tile.grid((L, BL)):
        at = t + ts.tile.arange(BL, dtype=ts.i64)
        key = keys[t : t + BL]
        after = ts.tile.load(keys[at + 1], fill=-1)
        if first is not None:
            before = ts.tile.load(keys[at - 1], fill=-1)
            if (at < L) & (key != before):
                first[key] = at.to(ts.i32)
        if (at < L) & (key != after):
            last[key] = (at + 1).to(ts.i32)


@ts.function
def sum_of(source: Any, tokens: Any, begin: Any, end: Any, n: Any, acc: Any, BT: Any, BN: Any):
    """Return the sum of the rows of tokens from one to before another, in their order, of columns from `n` on."""
    total = ts.tile.zeros((BT, BN), acc)
    for t in ts.tile.range(begin, end, BT):
        at = t + ts.tile.arange(BT, dtype=ts.i64)
        token = ts.tile.where(at < end, ts.tile.load(tokens[at]), -1)
        total = total + source[token, n : n + BN].to(acc)
    return ts.tile.sum(total, 0)


@ts.kernel
def row_sums(
    grad: ts.Tensor[L, N, T],
    tokens: ts.Tensor[L, ts.i32],
    first: ts.Tensor[V, ts.i32],
    last: ts.Tensor[V, ts.i32],
    out: ts.Tensor[V, N, T],
    acc: Constant,
    BT: Constant = 8,
    BN: Constant = 256,
):
    """Add up the gradients of the tokens of each row, in their order."""
    for v, n in ts.tile.grid((V, 1), (N, BN)):
        out[v, n : n + BN] = sum_of(grad, tokens, first[v], last[v], n, acc, BT, BN)


@ts.kernel
def scatter_rows(
    x: ts.Tensor[V, N, E],
    source: ts.Tensor[L, N, E],
    tokens: ts.Tensor[L, ts.i32],
    first: ts.Tensor[V, ts.i32],
    last: ts.Tensor[V, ts.i32],
    out: ts.Tensor[V, N, E],
    adds: Constant,
    acc: Constant,
    BT: Constant = 8,
    BN: Constant = 256,
):
    """Add the tokens of each row to it in their order, or put the last of them in its place."""
    for v, n in ts.tile.grid((V, 1), (N, BN)):
        begin = first[v]
        end = last[v]
        if adds:
            found = sum_of(source, tokens, begin, end, n, acc, BT, BN)
            out[v, n : n + BN] = x[v, n : n + BN].to(acc) + found
        else:
            token = tokens[ts.tile.maximum(end - 1, 0)]
            out[v, n : n + BN] = ts.tile.where(end > begin, source[token, n : n + BN], x[v, n : n + BN])


@ts.kernel
def scatter_runs(
    x: ts.Tensor[V, N, E] | None,
    source: ts.Tensor[L, N, E],
    keys: ts.Tensor[L, ts.i32],
    tokens: ts.Tensor[L, ts.i32],
    last: ts.Tensor[V, ts.i32],
    out: ts.Tensor[V, N, E],
    adds: Constant,
    acc: Constant,
    BT: Constant = 8,
    BN: Constant = 256,
):
    """Do what `scatter_rows` does, to zeros without `x`, for rows that have tokens: by the first token of each."""
    for t, n in ts.tile.grid((L, 1), (N, BN)):
        key = keys[t]
        before = ts.tile.load(keys[ts.tile.maximum(t - 1, 0)])
        end = ts.tile.load(last[key])
        if (t == 0) | (key != before):
            if adds:
                found = sum_of(source, tokens, t, end, n, acc, BT, BN)
                if x is not None:
                    found = x[key, n : n + BN].to(acc) + found
                out[key, n : n + BN] = found
            else:
                out[key, n : n + BN] = source[tokens[ts.tile.maximum(end - 1, 0)], n : n + BN]


@ts.kernel
def scatter_elements(
    x: ts.Tensor[V, E],
    source: ts.Tensor[L, E],
    tokens: ts.Tensor[L, ts.i32],
    first: ts.Tensor[V, ts.i32],
    last: ts.Tensor[V, ts.i32],
    out: ts.Tensor[V, E],
    kind: Constant,
    acc: Constant,
    BV: Constant = 256,
):
    """Add up rows of one element, of which a program has several, or multiply them."""
    for v in ts.tile.grid((V, BV)):
        begin = first[v : v + BV]
        end = last[v : v + BV]
        total = x[v : v + BV].to(acc)
        for step in ts.tile.range(0, ts.tile.max(end - begin)):
            at = begin + step
            token = ts.tile.where(at < end, ts.tile.load(tokens[at]), -1)
            one = ts.tile.load(source[token]).to(acc)
            total = total + one if kind == "sum" else ts.tile.where(at < end, total * one, total)
        out[v : v + BV] = total


@ts.kernel
def scatter_in_turn(
    x: ts.Tensor[V, N, E] | None,
    index: ts.Tensor[L, I],
    source: ts.Tensor[M, N, E],
    out: ts.Tensor[V, N, A],
    padding: I64,
    kind: Constant,
    acc: Constant,
    BV: Constant = 8,
    BN: Constant = 256,
):
    """Do the same, from zeros where nothing is given, without an order: a program takes all tokens for some columns.

    All tokens may have the same row, the only one of the source.
    """
    for n in ts.tile.grid((N, BN)):
        for v in ts.tile.range(0, V, BV):
            if x is None:
                out[v : v + BV, n : n + BN] = ts.tile.zeros((BV, BN), acc)
            else:
                out[v : v + BV, n : n + BN] = x[v : v + BV, n : n + BN].to(acc)
        for t in ts.tile.range(0, L):
            row = index[t].to(ts.i64)
            if (row >= 0) & (row < V) & (row != padding):
                one = source[ts.tile.minimum(t, M - 1), n : n + BN].to(acc)
                if kind == "put":
                    out[row, n : n + BN] = one
                elif kind == "sum":
                    out[row, n : n + BN] = out[row, n : n + BN] + one
                elif kind == "prod":
                    out[row, n : n + BN] = out[row, n : n + BN] * one
                elif kind == "max":
                    out[row, n : n + BN] = ts.tile.maximum(out[row, n : n + BN], one)
                else:
                    out[row, n : n + BN] = ts.tile.minimum(out[row, n : n + BN], one)


@ts.kernel
def rounded(wide: ts.Tensor[V, N, A], out: ts.Tensor[V, N, E], BV: Constant = 8, BN: Constant = 256):
    """Give sums the dtype of what was added up."""
    for v, n in ts.tile.grid((V, BV), (N, BN)):
        out[v : v + BV, n : n + BN] = wide[v : v + BV, n : n + BN].to(out.dtype)
