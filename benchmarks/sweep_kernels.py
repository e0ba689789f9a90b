"""The kernels that `sweep.py` measures: plain tile code as one would write it, for any sizes, strides and dtypes.

A kernel takes dimensions that lie one after the other as one, as a caller merges them by a view. Blocks of kernels over
several dimensions are chosen by `sweep_works.py`.
"""

from __future__ import annotations

from typing import Any

import tessera as ts

EPS = 1e-6
T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32)


# Products


@ts.kernel
def product(
    a: ts.Tensor["M", "K", T],
    b: ts.Tensor["K", "N", T],
    c: ts.Tensor["M", "N", T],
    BM: ts.constexpr,
    BN: ts.constexpr,
    BK: ts.constexpr,
):
    """A product by tiles of the caller's choice."""
    for m, n in ts.tile.grid((M, BM), (N, BN)):
        acc = ts.tile.zeros((BM, BN), ts.f32)
        for k in ts.tile.range(0, K, BK):
            acc = ts.tile.mma(a[m : m + BM, k : k + BK], b[k : k + BK, n : n + BN], acc)
        c[m : m + BM, n : n + BN] = acc


# Rows: a program takes one


@ts.kernel
def rms_norm(x: ts.Tensor["M", "N", T], w: ts.Tensor["N", T], y: ts.Tensor["M", "N", T]):
    """RMSNorm with weights."""
    for m in ts.tile.grid((M, 1)):
        row = x[m, :].to(ts.f32)
        y[m, :] = row * ts.tile.rsqrt(ts.tile.sum(row * row) / N + EPS) * w[:]


@ts.kernel
def layer_norm(x: ts.Tensor["M", "N", T], w: ts.Tensor["N", T], b: ts.Tensor["N", T], y: ts.Tensor["M", "N", T]):
    """LayerNorm with weights and a bias."""
    for m in ts.tile.grid((M, 1)):
        row = x[m, :].to(ts.f32)
        apart = row - ts.tile.sum(row) / N
        y[m, :] = apart * ts.tile.rsqrt(ts.tile.sum(apart * apart) / N + EPS) * w[:] + b[:]


@ts.kernel
def softmax(x: ts.Tensor["M", "N", T], y: ts.Tensor["M", "N", T]):
    """Softmax of rows."""
    for m in ts.tile.grid((M, 1)):
        row = x[m, :].to(ts.f32)
        powers = ts.tile.exp(row - ts.tile.max(row))
        y[m, :] = powers / ts.tile.sum(powers)


@ts.kernel
def row_sum(x: ts.Tensor["M", "N", T], y: ts.Tensor["M", T]):
    """Sums of rows."""
    for m in ts.tile.grid((M, 1)):
        y[m] = ts.tile.sum(x[m, :].to(ts.f32))


@ts.kernel
def argmax(x: ts.Tensor["M", "N", T], y: ts.Tensor["M", ts.i32]):
    """Places of the largest."""
    for m in ts.tile.grid((M, 1)):
        y[m] = ts.tile.argmax(x[m, :])


@ts.kernel
def cumsum(x: ts.Tensor["M", "N", T], y: ts.Tensor["M", "N", T]):
    """Running sums."""
    for m in ts.tile.grid((M, 1)):
        y[m, :] = ts.tile.cumsum(x[m, :].to(ts.f32), 0)


# Reductions: K is a dimension that is kept, R one that is reduced


@ts.function
def identity(op: Any) -> Any:
    """What a reduction starts from."""
    return 0.0 if op == "sum" else -float("inf")


@ts.function
def joined(op: Any, a: Any, b: Any) -> Any:
    """Two parts of a reduction as one."""
    if op == "sum":
        return a + b
    return ts.tile.maximum(a, b)


@ts.kernel
def reduce_r(x: ts.Tensor["A", T], part: ts.Tensor["P", ts.f32], y: ts.Tensor[1, T], op: ts.constexpr, B: ts.constexpr):
    """All elements: parts, then what they give together."""
    for a in ts.tile.grid((A, B)):
        block = ts.tile.load(x[a : a + B], fill=identity(op)).to(ts.f32)
        part[a // B] = ts.tile.reduce(block, None, op)
    for _ in ts.tile.grid((1, 1)):
        y[0] = ts.tile.reduce(part[:], None, op)


@ts.kernel
def reduce_kr(x: ts.Tensor["A", "B", T], y: ts.Tensor["A", T], op: ts.constexpr):
    """Along rows."""
    for a in ts.tile.grid((A, 1)):
        y[a] = ts.tile.reduce(x[a, :].to(ts.f32), None, op)


@ts.kernel
def reduce_rk(x: ts.Tensor["A", "B", T], y: ts.Tensor["B", T], op: ts.constexpr, BA: ts.constexpr, BB: ts.constexpr):
    """Along columns."""
    for b in ts.tile.grid((B, BB)):
        total = ts.tile.full((BB,), identity(op), ts.f32)
        for a in ts.tile.range(0, A, BA):
            block = ts.tile.load(x[a : a + BA, b : b + BB], fill=identity(op)).to(ts.f32)
            total = joined(op, total, ts.tile.reduce(block, 0, op))
        y[b : b + BB] = total


@ts.kernel
def reduce_krk(
    x: ts.Tensor["A", "B", "C", T],
    y: ts.Tensor["A", "C", T],
    op: ts.constexpr,
    BB: ts.constexpr,
    BC: ts.constexpr,
):
    """Along a dimension in the middle."""
    for a, c in ts.tile.grid((A, 1), (C, BC)):
        total = ts.tile.full((BC,), identity(op), ts.f32)
        for b in ts.tile.range(0, B, BB):
            block = ts.tile.load(x[a, b : b + BB, c : c + BC], fill=identity(op)).to(ts.f32)
            total = joined(op, total, ts.tile.reduce(block, 0, op))
        y[a, c : c + BC] = total


@ts.kernel
def reduce_rkr(x: ts.Tensor["A", "B", "C", T], y: ts.Tensor["B", T], op: ts.constexpr):
    """Along the first and the last dimension, as statistics of channels are."""
    for b in ts.tile.grid((B, 1)):
        total = ts.tile.full((1,), identity(op), ts.f32)
        for a in ts.tile.range(A):
            total = joined(op, total, ts.tile.reduce(x[a, b, :].to(ts.f32), None, op))
        y[b : b + 1] = total


@ts.kernel
def reduce_krkr(x: ts.Tensor["A", "B", "C", "D", T], y: ts.Tensor["A", "C", T], op: ts.constexpr):
    """Along the second and the last dimension."""
    for a, c in ts.tile.grid((A, 1), (C, 1)):
        total = ts.tile.full((1,), identity(op), ts.f32)
        for b in ts.tile.range(B):
            total = joined(op, total, ts.tile.reduce(x[a, b, c, :].to(ts.f32), None, op))
        y[a, c : c + 1] = total


@ts.kernel
def reduce_rkrk(
    x: ts.Tensor["A", "B", "C", "D", T],
    y: ts.Tensor["B", "D", T],
    op: ts.constexpr,
    BC: ts.constexpr,
    BD: ts.constexpr,
):
    """Along the first and the third dimension."""
    for b, d in ts.tile.grid((B, 1), (D, BD)):
        total = ts.tile.full((BD,), identity(op), ts.f32)
        for a in ts.tile.range(A):
            for c in ts.tile.range(0, C, BC):
                block = ts.tile.load(x[a, b, c : c + BC, d : d + BD], fill=identity(op)).to(ts.f32)
                total = joined(op, total, ts.tile.reduce(block, 0, op))
        y[b, d : d + BD] = total


REDUCTIONS = {
    "r": reduce_r,
    "kr": reduce_kr,
    "rk": reduce_rk,
    "krk": reduce_krk,
    "rkr": reduce_rkr,
    "krkr": reduce_krkr,
    "rkrk": reduce_rkrk,
}


# Elementwise with broadcasts: f is a dimension that the second operand has, b one along which it is the same


@ts.function
def combined(op: Any, x: Any, b: Any) -> Any:
    """One function of two operands, in f32."""
    x, b = x.to(ts.f32), b.to(ts.f32)
    if op == "add":
        return x + b
    if op == "mul":
        return x * b
    if op == "swiglu":
        return ts.tile.silu(x) * b
    return ts.tile.gelu(x + b, approximate=True)


@ts.kernel
def each_f(x: ts.Tensor["A", T], b: ts.Tensor["A", T], y: ts.Tensor["A", T], op: ts.constexpr, BA: ts.constexpr):
    """Two operands of one shape."""
    for i in ts.tile.grid((A, BA)):
        y[i : i + BA] = combined(op, x[i : i + BA], b[i : i + BA])


@ts.kernel
def each_b(x: ts.Tensor["A", T], b: ts.Tensor[1, T], y: ts.Tensor["A", T], op: ts.constexpr, BA: ts.constexpr):
    """The same number for all."""
    for i in ts.tile.grid((A, BA)):
        y[i : i + BA] = combined(op, x[i : i + BA], b[0:1])


@ts.kernel
def each_ff(
    x: ts.Tensor["A", "B", T],
    b: ts.Tensor["A", "B", T],
    y: ts.Tensor["A", "B", T],
    op: ts.constexpr,
    BA: ts.constexpr,
    BB: ts.constexpr,
):
    """Two operands of one shape whose rows lie apart."""
    for i, j in ts.tile.grid((A, BA), (B, BB)):
        y[i : i + BA, j : j + BB] = combined(op, x[i : i + BA, j : j + BB], b[i : i + BA, j : j + BB])


@ts.kernel
def each_fb(
    x: ts.Tensor["A", "B", T],
    b: ts.Tensor["A", T],
    y: ts.Tensor["A", "B", T],
    op: ts.constexpr,
    BA: ts.constexpr,
    BB: ts.constexpr,
):
    """A number for each row."""
    for i, j in ts.tile.grid((A, BA), (B, BB)):
        y[i : i + BA, j : j + BB] = combined(op, x[i : i + BA, j : j + BB], b[i : i + BA][:, None])


@ts.kernel
def each_bf(
    x: ts.Tensor["A", "B", T],
    b: ts.Tensor["B", T],
    y: ts.Tensor["A", "B", T],
    op: ts.constexpr,
    BA: ts.constexpr,
    BB: ts.constexpr,
):
    """A number for each column, as a bias is."""
    for i, j in ts.tile.grid((A, BA), (B, BB)):
        y[i : i + BA, j : j + BB] = combined(op, x[i : i + BA, j : j + BB], b[j : j + BB][None, :])


@ts.kernel
def each_fbf(
    x: ts.Tensor["A", "B", "C", T],
    b: ts.Tensor["A", "C", T],
    y: ts.Tensor["A", "B", "C", T],
    op: ts.constexpr,
    BB: ts.constexpr,
    BC: ts.constexpr,
):
    """The same along the middle."""
    for i, j, k in ts.tile.grid((A, 1), (B, BB), (C, BC)):
        y[i, j : j + BB, k : k + BC] = combined(op, x[i, j : j + BB, k : k + BC], b[i, k : k + BC][None, :])


@ts.kernel
def each_bfb(
    x: ts.Tensor["A", "B", "C", T],
    b: ts.Tensor["B", T],
    y: ts.Tensor["A", "B", "C", T],
    op: ts.constexpr,
    BB: ts.constexpr,
    BC: ts.constexpr,
):
    """A number for each channel."""
    for i, j, k in ts.tile.grid((A, 1), (B, BB), (C, BC)):
        y[i, j : j + BB, k : k + BC] = combined(op, x[i, j : j + BB, k : k + BC], b[j : j + BB][:, None])


@ts.kernel
def each_fbfb(
    x: ts.Tensor["A", "B", "C", "D", T],
    b: ts.Tensor["A", "C", T],
    y: ts.Tensor["A", "B", "C", "D", T],
    op: ts.constexpr,
    BC: ts.constexpr,
    BD: ts.constexpr,
):
    """The same along the second and the last dimension."""
    for i, j, k, h in ts.tile.grid((A, 1), (B, 1), (C, BC), (D, BD)):
        block = x[i, j, k : k + BC, h : h + BD]
        y[i, j, k : k + BC, h : h + BD] = combined(op, block, b[i, k : k + BC][:, None])


@ts.kernel
def each_bfbf(
    x: ts.Tensor["A", "B", "C", "D", T],
    b: ts.Tensor["B", "D", T],
    y: ts.Tensor["A", "B", "C", "D", T],
    op: ts.constexpr,
    BC: ts.constexpr,
    BD: ts.constexpr,
):
    """The same along the first and the third dimension."""
    for i, j, k, h in ts.tile.grid((A, 1), (B, 1), (C, BC), (D, BD)):
        block = x[i, j, k : k + BC, h : h + BD]
        y[i, j, k : k + BC, h : h + BD] = combined(op, block, b[j, h : h + BD][None, :])


ELEMENTWISE = {
    "f": each_f,
    "b": each_b,
    "ff": each_ff,
    "fb": each_fb,
    "bf": each_bf,
    "fbf": each_fbf,
    "bfb": each_bfb,
    "fbfb": each_fbfb,
    "bfbf": each_bfbf,
}


# Permutes: x is the permuted view, of the shape of y


@ts.kernel
def transpose(x: ts.Tensor["A", "B", T], y: ts.Tensor["B", "A", T], BA: ts.constexpr, BB: ts.constexpr):
    """A transposed matrix, from the matrix itself."""
    for i, j in ts.tile.grid((A, BA), (B, BB)):
        y[j : j + BB, i : i + BA] = x[i : i + BA, j : j + BB].T


@ts.kernel
def permute3(
    x: ts.Tensor["A", "B", "C", T],
    y: ts.Tensor["A", "B", "C", T],
    BA: ts.constexpr,
    BB: ts.constexpr,
    BC: ts.constexpr,
):
    """Three dimensions."""
    for i, j, k in ts.tile.grid((A, BA), (B, BB), (C, BC)):
        y[i : i + BA, j : j + BB, k : k + BC] = x[i : i + BA, j : j + BB, k : k + BC]


@ts.kernel
def permute4(
    x: ts.Tensor["A", "B", "C", "D", T],
    y: ts.Tensor["A", "B", "C", "D", T],
    BA: ts.constexpr,
    BB: ts.constexpr,
    BC: ts.constexpr,
    BD: ts.constexpr,
):
    """Four dimensions."""
    for i, j, k, h in ts.tile.grid((A, BA), (B, BB), (C, BC), (D, BD)):
        block = x[i : i + BA, j : j + BB, k : k + BC, h : h + BD]
        y[i : i + BA, j : j + BB, k : k + BC, h : h + BD] = block


@ts.kernel
def permute5(
    x: ts.Tensor["A", "B", "C", "D", "E", T],
    y: ts.Tensor["A", "B", "C", "D", "E", T],
    BA: ts.constexpr,
    BB: ts.constexpr,
    BC: ts.constexpr,
    BD: ts.constexpr,
    BE: ts.constexpr,
):
    """Five dimensions."""
    for i, j, k, h, m in ts.tile.grid((A, BA), (B, BB), (C, BC), (D, BD), (E, BE)):
        block = x[i : i + BA, j : j + BB, k : k + BC, h : h + BD, m : m + BE]
        y[i : i + BA, j : j + BB, k : k + BC, h : h + BD, m : m + BE] = block


PERMUTES = {2: transpose, 3: permute3, 4: permute4, 5: permute5}


# Gathers and scatters of rows


@ts.kernel
def gather(x: ts.Tensor["R", "N", T], places: ts.Tensor["M", ts.i32], y: ts.Tensor["M", "N", T]):
    """Rows from given places, as an embedding takes them."""
    for m in ts.tile.grid((M, 1)):
        y[m, :] = x[places[m], :]


@ts.kernel
def scatter(x: ts.Tensor["M", "N", T], places: ts.Tensor["M", ts.i32], y: ts.Tensor["R", "N", T]):
    """Rows to given places, each to its own."""
    for m in ts.tile.grid((M, 1)):
        y[places[m], :] = x[m, :]
