"""Gradients of small kernels of every kind, beside finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.unit.autodiff.slopes import check_slopes, numbers

F = ts.f64


@ts.kernel
def polynomial(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 32)):
        t = x[i : i + 32]
        y[i : i + 32] = 3.0 * t * t * t - t / 2.0 + 1.0


@ts.kernel
def by_number(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    i = ts.tile.linear_id()
    if i < n:
        y[i] = ts.tile.sin(x[i]) * ts.tile.exp(-x[i])


@ts.kernel
def two_inputs(a: ts.Tensor["m", "n", F], b: ts.Tensor["m", "n", F], y: ts.Tensor["m", "n", F]):
    for i, j in ts.tile.grid((m, 8), (n, 16)):
        u, v = a[i : i + 8, j : j + 16], b[i : i + 8, j : j + 16]
        y[i : i + 8, j : j + 16] = ts.tile.tanh(u) * v + ts.tile.maximum(u, v) / (2.0 + v * v)


@ts.kernel
def two_outputs(x: ts.Tensor["n", F], s: ts.Tensor["n", F], c: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 16)):
        s[i : i + 16] = ts.tile.sin(x[i : i + 16])
        c[i : i + 16] = ts.tile.cos(x[i : i + 16])


@ts.kernel
def row_sums(x: ts.Tensor["m", "n", F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 4)):
        acc = ts.tile.zeros((4,), F)
        for j in ts.tile.range(0, n, 8):
            acc = acc + ts.tile.sum(x[i : i + 4, j : j + 8] * x[i : i + 4, j : j + 8], axis=1)
        y[i : i + 4] = acc


@ts.kernel
def column_sums(x: ts.Tensor["m", "n", F], y: ts.Tensor["n", F]):
    for j in ts.tile.grid((n, 8)):
        acc = ts.tile.zeros((8,), F)
        for i in ts.tile.range(0, m, 4):
            acc += ts.tile.sum(ts.tile.exp(x[i : i + 4, j : j + 8]) - 1.0, axis=0)
        y[j : j + 8] = acc


@ts.kernel
def scaled_rows(x: ts.Tensor["m", "n", F], w: ts.Tensor["n", F], y: ts.Tensor["m", "n", F]):
    for i in ts.tile.grid((m, 4)):
        y[i : i + 4, :] = x[i : i + 4, :] * w[:]


@ts.kernel
def outer(u: ts.Tensor["m", F], v: ts.Tensor["n", F], y: ts.Tensor["m", "n", F]):
    for i, j in ts.tile.grid((m, 8), (n, 8)):
        y[i : i + 8, j : j + 8] = u[i : i + 8][:, None] * v[j : j + 8][None, :]


@ts.kernel
def softmax_rows(x: ts.Tensor["m", "n", F], y: ts.Tensor["m", "n", F]):
    for i in ts.tile.grid((m, 4)):
        t = x[i : i + 4, :]
        e = ts.tile.exp(t - ts.tile.row_max(t)[:, None])
        y[i : i + 4, :] = e / ts.tile.row_sum(e)[:, None]


@ts.kernel
def online_logsumexp(x: ts.Tensor["m", "n", F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 4)):
        top = ts.tile.full((4,), -float("inf"), F)
        total = ts.tile.zeros((4,), F)
        for j in ts.tile.range(0, n, 8):
            inside = j + ts.tile.arange(8) < n
            t = ts.tile.where(inside[None, :], x[i : i + 4, j : j + 8], -float("inf"))
            new = ts.tile.maximum(top, ts.tile.row_max(t))
            total = total * ts.tile.exp(top - new) + ts.tile.row_sum(ts.tile.exp(t - new[:, None]))
            top = new
        y[i : i + 4] = top + ts.tile.log(total)


@ts.kernel
def products_of_batches(a: ts.Tensor["b", "m", 8, F], w: ts.Tensor[8, 16, F], c: ts.Tensor["b", "m", 16, F]):
    for g, i in ts.tile.grid((b, 2), (m, 8)):
        c[g : g + 2, i : i + 8, :] = ts.tile.mma(a[g : g + 2, i : i + 8, :], w[:, :])


@ts.kernel
def running_sum(x: ts.Tensor["m", "n", F], y: ts.Tensor["m", "n", F]):
    for i in ts.tile.grid((m, 2)):
        y[i : i + 2, :] = ts.tile.cumsum(x[i : i + 2, :] * x[i : i + 2, :], axis=1)


@ts.kernel
def running_sum_in_blocks(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for _ in ts.tile.grid((1, 1)):
        before = ts.tile.zeros((1,), F)
        for j in ts.tile.range(0, n, 8):
            t = ts.tile.sin(x[j : j + 8])
            y[j : j + 8] = ts.tile.cumsum(t, axis=0) + before
            before = before + ts.tile.sum(t)


@ts.kernel
def recurrence(x: ts.Tensor["n", F], a: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for _ in ts.tile.grid((1, 1)):
        h = 0.5 * x[0]
        for t in ts.tile.range(n):
            h = ts.tile.tanh(a[t] * h + x[t])
            y[t] = h


@ts.kernel
def gathered(table: ts.Tensor["v", "d", F], ids: ts.Tensor["n", ts.i32], y: ts.Tensor["n", "d", F]):
    for i in ts.tile.grid((n, 8)):
        rows = ids[i : i + 8]
        y[i : i + 8, :] = ts.tile.sin(table[rows, :])


@ts.kernel
def gathered_elements(x: ts.Tensor["n", F], ids: ts.Tensor["m", ts.i64], y: ts.Tensor["m", F]):
    i = ts.tile.linear_id()
    if i < m:
        y[i] = x[ids[i]] * x[ids[i]]


@ts.kernel
def repeated(x: ts.Tensor["n", F], y: ts.Tensor["m", F]):
    i = ts.tile.linear_id()
    if i < m:
        y[i] = x[i // 3] * ts.tile.cast(i, F)


@ts.kernel
def stencil(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 16)):
        left, mid, right = x[i - 1 : i + 15], x[i : i + 16], x[i + 1 : i + 17]
        y[i : i + 16] = left * mid - 2.0 * right * right


@ts.kernel
def convolved(x: ts.Tensor["n", F], w: ts.Tensor[5, F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 16)):
        acc = ts.tile.zeros((16,), F)
        for t in ts.tile.range(5):
            acc += w[t] * x[i + t - 2 : i + t + 14]
        y[i : i + 16] = acc


@ts.kernel
def transposed(x: ts.Tensor["m", "n", F], y: ts.Tensor["n", "m", F]):
    for i, j in ts.tile.grid((m, 8), (n, 8)):
        y[j : j + 8, i : i + 8] = ts.tile.exp(x[i : i + 8, j : j + 8]).T


@ts.kernel
def reversed_rows(x: ts.Tensor["m", 12, F], y: ts.Tensor["m", 12, F]):
    for i in ts.tile.grid((m, 4)):
        t = x[i : i + 4, :]
        y[i : i + 4, :] = t[:, ::-1] * t


@ts.kernel
def parts(x: ts.Tensor["m", 12, F], y: ts.Tensor["m", 4, F]):
    for i in ts.tile.grid((m, 4)):
        t = x[i : i + 4, :]
        y[i : i + 4, :] = t[:, 0:4] * t[:, 8:12] + t[:, 1:12:3] * t[:, 3:7]


@ts.kernel
def elements_of_tiles(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 8)):
        t = x[i : i + 8]
        total = t[0] * t[7]
        for j in ts.tile.range(1, 7):
            total += t[j] * t[j - 1]
        y[i : i + 8] = total * t


@ts.kernel
def every_second(x: ts.Tensor["n", F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 8)):
        y[i : i + 8] = x[2 * i : 2 * i + 16 : 2] * x[2 * i + 1 : 2 * i + 17 : 2]


@ts.kernel
def masked(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 16)):
        t = x[i : i + 16]
        y[i : i + 16] = ts.tile.where(t > 0.0, ts.tile.sqrt(ts.tile.maximum(t, 1e-30)), t * t)


@ts.kernel
def masked_store(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 16)):
        t = x[i : i + 16]
        if t > 0.2:
            y[i : i + 16] = t * t * t


@ts.kernel
def branch_by_program(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 8)):
        t = x[i : i + 8]
        if i % 16 == 0:
            t = t * t
        else:
            t = ts.tile.sin(t) * 3.0
        y[i : i + 8] = t


@ts.kernel
def branch_by_data(x: ts.Tensor["n", F], s: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 8)):
        t = x[i : i + 8]
        if ts.tile.sum(s[i : i + 8]) > 0.0:
            y[i : i + 8] = t * s[i : i + 8]
        else:
            y[i : i + 8] = ts.tile.exp(t)


@ts.kernel
def skipping(x: ts.Tensor["m", "n", F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 1)):
        acc = 1.0 + 0.0 * x[i, 0]
        for j in ts.tile.range(n):
            if j % 3 == 1:
                continue
            acc = acc * (1.0 + 0.1 * x[i, j])
        y[i] = acc


@ts.kernel
def triangular(x: ts.Tensor["n", "n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 1)):
        acc = 0.0 * x[i, 0]
        for j in ts.tile.range(i + 1):
            acc = ts.tile.sin(acc + x[i, j])
        y[i] = acc


@ts.kernel
def as_long_as_it_says(x: ts.Tensor["m", "n", F], sizes: ts.Tensor["m", ts.i32], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 1)):
        acc = 1.0 + x[i, 0]
        for j in ts.tile.range(sizes[i]):
            acc = acc * (1.0 + 0.3 * x[i, j])
        y[i] = acc


@ts.kernel
def nested_loops(x: ts.Tensor["m", "n", F], y: ts.Tensor["k", F]):
    for p in ts.tile.grid((k, 1)):
        acc = 0.1 * x[0, p]
        for i in ts.tile.range(m):
            inner = acc
            for j in ts.tile.range(0, n, 4):
                inner = ts.tile.tanh(inner + ts.tile.sum(x[i, j : j + 4]) * acc)
            acc = acc + inner * inner
        y[p] = acc


@ts.kernel
def in_two_grids(x: ts.Tensor["m", "n", F], t: ts.Tensor["m", F], y: ts.Tensor["m", "n", F]):
    for i in ts.tile.grid((m, 4)):
        t[i : i + 4] = ts.tile.sum(x[i : i + 4, :] * x[i : i + 4, :], axis=1)
    for i, j in ts.tile.grid((m, 4), (n, 8)):
        y[i : i + 4, j : j + 8] = x[i : i + 4, j : j + 8] / (1.0 + t[i : i + 4][:, None] * t[i : i + 4][:, None])


@ts.kernel
def in_place(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 16)):
        y[i : i + 16] = 2.0 * y[i : i + 16] + ts.tile.sin(x[i : i + 16])


@ts.kernel
def stored_twice(x: ts.Tensor["n", F], z: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 16)):
        y[i : i + 16] = x[i : i + 16] * x[i : i + 16]
        y[i : i + 7] = z[i : i + 7] * x[i : i + 7]


@ts.kernel
def last_of_loop(x: ts.Tensor["m", "n", F], y: ts.Tensor["n", F]):
    for j in ts.tile.grid((n, 8)):
        for i in ts.tile.range(m):
            y[j : j + 8] = x[i, j : j + 8] * x[i, j : j + 8]


@ts.kernel
def added_in_place(x: ts.Tensor["m", "n", F], y: ts.Tensor["n", F]):
    for j in ts.tile.grid((n, 8)):
        for i in ts.tile.range(m):
            y[j : j + 8] += x[i, j : j + 8] * x[i, j : j + 8]


@ts.kernel
def extremes(x: ts.Tensor["m", "n", F], top: ts.Tensor["m", F], low: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 4)):
        t = x[i : i + 4, :]
        top[i : i + 4] = ts.tile.max(t, axis=1)
        low[i : i + 4] = ts.tile.min(t * t, axis=1)


@ts.kernel
def products(x: ts.Tensor["m", 7, F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 4)):
        y[i : i + 4] = ts.tile.prod(x[i : i + 4, :], axis=1)


@ts.kernel
def layer(x: ts.Tensor["m", "n", F], w: ts.Tensor["n", F], b: ts.Tensor["n", F], y: ts.Tensor["m", "n", F], eps: F):
    for i in ts.tile.grid((m, 8)):
        t = x[i : i + 8, :]
        centred = t - ts.tile.row_sum(t)[:, None] / n
        scale = ts.tile.rsqrt(ts.tile.row_sum(centred * centred) / n + eps)
        y[i : i + 8, :] = centred * scale[:, None] * w[:] + b[:]


@ts.kernel
def by_first_program(x: ts.Tensor["m", "n", F], s: ts.Tensor["m", F], y: ts.Tensor["m", "n", F]):
    for i, j in ts.tile.grid((m, 4), (n, 8)):
        t = x[i : i + 4, j : j + 8]
        y[i : i + 4, j : j + 8] = t * t
        if j == 0:
            s[i : i + 4] = t[:, 0] * t[:, 1]


@ts.function
def swish(x, beta):
    return x * ts.tile.sigmoid(beta * x)


@ts.kernel
def with_helper(x: ts.Tensor["n", F], beta: ts.Tensor[1, F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 16)):
        y[i : i + 16] = swish(x[i : i + 16], beta[0])


@ts.kernel
def pairs_of_elements(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 16)):
        t = x[i : i + 16]
        y[i : i + 16] = t * ts.tile.roll(t, 3) + ts.tile.flip(t, 0)


@ts.kernel
def taken(x: ts.Tensor["m", 8, F], k: ts.Tensor["m", 5, ts.i32], y: ts.Tensor["m", 5, F]):
    for i in ts.tile.grid((m, 4)):
        t = x[i : i + 4, :]
        y[i : i + 4, :] = ts.tile.take_along_axis(t * t, k[i : i + 4, :], axis=1)


@ts.kernel
def joined(a: ts.Tensor["n", F], b: ts.Tensor["n", F], y: ts.Tensor["n", 2, F]):
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8, :] = ts.tile.stack((a[i : i + 8] * b[i : i + 8], b[i : i + 8]), axis=1)


@ts.kernel
def reshaped(x: ts.Tensor["m", 12, F], y: ts.Tensor["m", 3, F]):
    for i in ts.tile.grid((m, 4)):
        t = x[i : i + 4, :].reshape(4, 3, 4)
        y[i : i + 4, :] = ts.tile.sum(t * t, axis=2)


@ts.kernel
def scattered_rows(x: ts.Tensor["n", F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((n, 8)):
        y[2 * i : 2 * i + 16 : 2] = x[i : i + 8] * x[i : i + 8]


@ts.kernel
def no_influence(x: ts.Tensor["n", F], z: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8] = x[i : i + 8] + ts.tile.floor(4.0 * z[i : i + 8] + 0.5)


@ts.kernel
def three_axes(x: ts.Tensor["a", "b", "c", F], w: ts.Tensor["b", F], y: ts.Tensor["a", "b", "c", F]):
    for i, j, k in ts.tile.grid((a, 1), (b, 2), (c, 8)):
        y[i, j : j + 2, k : k + 8] = x[i, j : j + 2, k : k + 8] * w[j : j + 2][:, None]


@ts.kernel
def scaled_product(
    a: ts.Tensor["m", "k", F], b: ts.Tensor["k", "n", F], s: ts.Tensor["n", F], c: ts.Tensor["m", "n", F]
):
    for i, j in ts.tile.grid((m, 8), (n, 8)):
        scale = s[j : j + 8]
        acc = ts.tile.zeros((8, 8), F)
        for p in ts.tile.range(0, k, 8):
            acc = ts.tile.mma(a[i : i + 8, p : p + 8], b[p : p + 8, j : j + 8] * scale[None, :], acc)
        c[i : i + 8, j : j + 8] = ts.tile.exp(acc * 0.1) * scale[None, :]


@ts.kernel
def activated_product(a: ts.Tensor["m", "k", F], b: ts.Tensor["k", "n", F], c: ts.Tensor["m", "n", F]):
    for i, j in ts.tile.grid((m, 8), (n, 4)):
        acc = ts.tile.zeros((8, 4), F)
        for p in ts.tile.range(4, k - 4, 4):
            right = b[p : p + 4, j : j + 4]
            acc = ts.tile.mma(a[i : i + 8, p : p + 4], right * right, acc)
        c[i : i + 8, j : j + 4] = ts.tile.tanh(acc) * ts.tile.sigmoid(acc) * acc


@ts.kernel
def overlapping_windows(a: ts.Tensor["m", "k", F], b: ts.Tensor["k", "n", F], c: ts.Tensor["m", "n", F]):
    for i, j in ts.tile.grid((m, 8), (n, 4)):
        acc = ts.tile.zeros((8, 4), F)
        for p in ts.tile.range(3, k - 4, 4):
            acc = ts.tile.mma(a[i : i + 8, p : p + 8], b[p : p + 8, j : j + 4], acc)
        c[i : i + 8, j : j + 4] = acc


@ts.kernel
def branch_in_loop(x: ts.Tensor["m", "n", F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 2)):
        grown, mixed = ts.tile.full((2,), 1.0, F), ts.tile.zeros((2,), F)
        for j in ts.tile.range(0, n, 4):
            t = ts.tile.sum(x[i : i + 2, j : j + 4], axis=1)
            if j % 8 == 0:
                grown = grown * (1.0 + 0.2 * t)
                mixed = mixed + grown
            else:
                mixed = mixed * t
        y[i : i + 2] = grown + mixed


@ts.kernel
def masked_loads(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 8)):
        t = ts.tile.load(x[i + 2 : i + 10], fill=3.0)
        if (i + ts.tile.arange(8)) % 3 == 0:
            y[i : i + 8] = x[i : i + 8] * t
        else:
            y[i : i + 8] = t * t * t


@ts.kernel
def functions(x: ts.Tensor["n", F], y: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 8)):
        t = x[i : i + 8]
        u = t**2.5 + 2.0**t + ts.tile.rsqrt(t) + ts.tile.cbrt(t) + ts.tile.log1p(t) + ts.tile.expm1(t)
        v = ts.tile.erf(t) + ts.tile.hypot(t, t + 1.0) + ts.tile.atan2(t, t + 2.0) + ts.tile.clamp(t, 0.7, 1.5)
        y[i : i + 8] = u + v * ts.tile.where(t > 1.0, ts.tile.log(t), 1.0)


@ts.kernel
def at_the_largest(x: ts.Tensor["m", "n", F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 1)):
        place = ts.tile.argmax(x[i, :], axis=0)
        y[i] = x[i, place] * x[i, place]


@ts.kernel
def read_back(x: ts.Tensor["n", F], y: ts.Tensor["n", F], z: ts.Tensor["n", F]):
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8] = ts.tile.exp(x[i : i + 8])
    for i in ts.tile.grid((n, 4)):
        z[i : i + 4] = y[i : i + 4] * y[i + 1 : i + 5]


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape)


IDS = np.array([3, 0, 3, 9, 1, 3, 0, 0, 5, 12, -1], np.int32)

CASES: dict[str, tuple[Any, dict[str, Any], list[str], list[str]]] = {
    "polynomial": (polynomial, dict(x=numbers(71), y=zeros(71)), ["y"], ["x"]),
    "linear_id": (by_number, dict(x=numbers(1500), y=zeros(1500)), ["y"], ["x"]),
    "two_inputs": (two_inputs, dict(a=numbers(13, 21), b=numbers(13, 21), y=zeros(13, 21)), ["y"], ["a", "b"]),
    "two_outputs": (two_outputs, dict(x=numbers(37), s=zeros(37), c=zeros(37)), ["s", "c"], ["x"]),
    "row_sums": (row_sums, dict(x=numbers(7, 19), y=zeros(7)), ["y"], ["x"]),
    "column_sums": (column_sums, dict(x=numbers(11, 19), y=zeros(19)), ["y"], ["x"]),
    "scaled_rows": (scaled_rows, dict(x=numbers(9, 6), w=numbers(6), y=zeros(9, 6)), ["y"], ["x", "w"]),
    "outer": (outer, dict(u=numbers(13), v=numbers(21), y=zeros(13, 21)), ["y"], ["u", "v"]),
    "softmax": (softmax_rows, dict(x=numbers(6, 11), y=zeros(6, 11)), ["y"], ["x"]),
    "online_logsumexp": (online_logsumexp, dict(x=numbers(6, 21), y=zeros(6)), ["y"], ["x"]),
    "products_of_batches": (
        products_of_batches,
        dict(a=numbers(3, 11, 8), w=numbers(8, 16), c=zeros(3, 11, 16)),
        ["c"],
        ["a", "w"],
    ),
    "running_sum": (running_sum, dict(x=numbers(3, 9), y=zeros(3, 9)), ["y"], ["x"]),
    "running_sum_in_blocks": (running_sum_in_blocks, dict(x=numbers(29), y=zeros(29)), ["y"], ["x"]),
    "recurrence": (recurrence, dict(x=numbers(9), a=numbers(9), y=zeros(9)), ["y"], ["x", "a"]),
    "gathered": (gathered, dict(table=numbers(10, 5), ids=IDS, y=zeros(11, 5)), ["y"], ["table"]),
    "gathered_elements": (
        gathered_elements,
        dict(x=numbers(10), ids=IDS.astype(np.int64), y=zeros(11)),
        ["y"],
        ["x"],
    ),
    "repeated": (repeated, dict(x=numbers(7), y=zeros(20)), ["y"], ["x"]),
    "stencil": (stencil, dict(x=numbers(45), y=zeros(45)), ["y"], ["x"]),
    "convolved": (convolved, dict(x=numbers(45), w=numbers(5), y=zeros(45)), ["y"], ["x", "w"]),
    "transposed": (transposed, dict(x=numbers(11, 13), y=zeros(13, 11)), ["y"], ["x"]),
    "reversed": (reversed_rows, dict(x=numbers(6, 12), y=zeros(6, 12)), ["y"], ["x"]),
    "parts": (parts, dict(x=numbers(6, 12), y=zeros(6, 4)), ["y"], ["x"]),
    "elements_of_tiles": (elements_of_tiles, dict(x=numbers(21), y=zeros(21)), ["y"], ["x"]),
    "every_second": (every_second, dict(x=numbers(41), y=zeros(20)), ["y"], ["x"]),
    "masked": (masked, dict(x=numbers(45), y=zeros(45)), ["y"], ["x"]),
    "masked_store": (masked_store, dict(x=numbers(45), y=numbers(45)), ["y"], ["x"]),
    "branch_by_program": (branch_by_program, dict(x=numbers(37), y=zeros(37)), ["y"], ["x"]),
    "branch_by_data": (branch_by_data, dict(x=numbers(37), s=numbers(37), y=zeros(37)), ["y"], ["x", "s"]),
    "skipping": (skipping, dict(x=numbers(3, 7), y=zeros(3)), ["y"], ["x"]),
    "triangular": (triangular, dict(x=numbers(6, 6), y=zeros(6)), ["y"], ["x"]),
    "length_from_memory": (
        as_long_as_it_says,
        dict(x=numbers(4, 7), sizes=np.array([3, 7, 0, 1], np.int32), y=zeros(4)),
        ["y"],
        ["x"],
    ),
    "nested_loops": (nested_loops, dict(x=numbers(3, 9), y=zeros(2)), ["y"], ["x"]),
    "two_grids": (in_two_grids, dict(x=numbers(7, 11), t=zeros(7), y=zeros(7, 11)), ["y"], ["x"]),
    "two_grids_and_both": (in_two_grids, dict(x=numbers(7, 11), t=zeros(7), y=zeros(7, 11)), ["t", "y"], ["x"]),
    "in_place": (in_place, dict(x=numbers(45), y=numbers(45)), ["y"], ["x", "y"]),
    "stored_twice": (stored_twice, dict(x=numbers(45), z=numbers(45), y=zeros(45)), ["y"], ["x", "z"]),
    "last_of_loop": (last_of_loop, dict(x=numbers(4, 21), y=zeros(21)), ["y"], ["x"]),
    "added_in_place": (added_in_place, dict(x=numbers(4, 21), y=numbers(21)), ["y"], ["x", "y"]),
    "extremes": (extremes, dict(x=numbers(6, 9), top=zeros(6), low=zeros(6)), ["top", "low"], ["x"]),
    "products": (products, dict(x=numbers(6, 7), y=zeros(6)), ["y"], ["x"]),
    "layer": (
        layer,
        dict(x=numbers(11, 9), w=numbers(9), b=numbers(9), y=zeros(11, 9), eps=0.0),
        ["y"],
        ["x", "w", "b"],
    ),
    "by_first_program": (
        by_first_program,
        dict(x=numbers(6, 19), s=zeros(6), y=zeros(6, 19)),
        ["s", "y"],
        ["x"],
    ),
    "with_helper": (with_helper, dict(x=numbers(37), beta=numbers(1), y=zeros(37)), ["y"], ["x", "beta"]),
    "rolled": (pairs_of_elements, dict(x=numbers(37), y=zeros(37)), ["y"], ["x"]),
    "taken": (
        taken,
        dict(x=numbers(6, 8), k=np.array([[0, 7, 0, 3, 3]] * 6, np.int32), y=zeros(6, 5)),
        ["y"],
        ["x"],
    ),
    "joined": (joined, dict(a=numbers(13), b=numbers(13), y=zeros(13, 2)), ["y"], ["a", "b"]),
    "reshaped": (reshaped, dict(x=numbers(6, 12), y=zeros(6, 3)), ["y"], ["x"]),
    "scattered": (scattered_rows, dict(x=numbers(20), y=zeros(40)), ["y"], ["x"]),
    "no_influence": (no_influence, dict(x=numbers(20), z=numbers(20), y=zeros(20)), ["y"], ["x", "z"]),
    "scaled_product": (
        scaled_product,
        dict(a=numbers(9, 12), b=numbers(12, 10), s=numbers(10), c=zeros(9, 10)),
        ["c"],
        ["a", "b", "s"],
    ),
    "activated_product": (
        activated_product,
        dict(a=numbers(9, 20), b=numbers(20, 10), c=zeros(9, 10)),
        ["c"],
        ["a", "b"],
    ),
    "overlapping_windows": (
        overlapping_windows,
        dict(a=numbers(9, 20), b=numbers(20, 10), c=zeros(9, 10)),
        ["c"],
        ["a", "b"],
    ),
    "branch_in_loop": (branch_in_loop, dict(x=numbers(6, 20), y=zeros(6)), ["y"], ["x"]),
    "masked_loads": (masked_loads, dict(x=numbers(30), y=zeros(30)), ["y"], ["x"]),
    "functions": (functions, dict(x=numbers(16, low=0.5, high=2.0), y=zeros(16)), ["y"], ["x"]),
    "at_the_largest": (at_the_largest, dict(x=numbers(8, 6), y=zeros(8)), ["y"], ["x"]),
    "read_back": (read_back, dict(x=numbers(20), y=zeros(20), z=zeros(20)), ["y", "z"], ["x"]),
    "three_axes": (three_axes, dict(x=numbers(2, 5, 9), w=numbers(5), y=zeros(2, 5, 9)), ["y"], ["x", "w"]),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_slopes(name: str):
    kernel, arguments, outputs, inputs = CASES[name]
    check_slopes(kernel, arguments, outputs, inputs)
