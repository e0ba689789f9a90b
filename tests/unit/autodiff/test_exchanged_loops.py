"""Gradients that have a grid of their own, in which a program owns a slice that all programs of the kernel read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.frontend.adjoint import adjoint_kernel
from tessera.frontend.specialize import ArgFacts, Specialization
from tests.unit.autodiff.slopes import check_slopes, numbers

F = ts.f64


@ts.kernel
def product(a: ts.Tensor["m", "k", F], b: ts.Tensor["k", "n", F], c: ts.Tensor["m", "n", F]):
    for i, j in ts.tile.grid((m, 8), (n, 8)):
        acc = ts.tile.zeros((8, 8), F)
        for p in ts.tile.range(0, k, 8):
            acc = ts.tile.mma(a[i : i + 8, p : p + 8], b[p : p + 8, j : j + 8], acc)
        c[i : i + 8, j : j + 8] = acc


@ts.kernel
def attention(
    q: ts.Tensor["h", "s", 8, F],
    k: ts.Tensor["h", "t", 8, F],
    v: ts.Tensor["h", "t", 8, F],
    y: ts.Tensor["h", "s", 8, F],
    causal: bool = False,
):
    for head, i in ts.tile.grid((h, 1), (s, 4)):
        queries = q[head, i : i + 4, :]
        top, total = ts.tile.full((4,), -float("inf"), F), ts.tile.zeros((4,), F)
        acc = ts.tile.zeros((4, 8), F)
        end = ts.tile.minimum(t, i + 4) if causal else t
        for j in ts.tile.range(0, end, 8):
            scores = ts.tile.mma(queries, k[head, j : j + 8, :].T) * (1.0 / math.sqrt(8))
            place = j + ts.tile.arange(8)
            if causal:
                scores = ts.tile.where(place[None, :] <= i + ts.tile.arange(4)[:, None], scores, -float("inf"))
            else:
                scores = ts.tile.where((place < t)[None, :], scores, -float("inf"))
            new = ts.tile.maximum(top, ts.tile.row_max(scores))
            decay, p = ts.tile.exp(top - new), ts.tile.exp(scores - new[:, None])
            total = decay * total + ts.tile.row_sum(p)
            acc = ts.tile.mma(p, v[head, j : j + 8, :], decay[:, None] * acc)
            top = new
        y[head, i : i + 4, :] = acc / total[:, None]


@ts.kernel
def rows_through_a_loop(x: ts.Tensor["m", "n", F], w: ts.Tensor["n", 8, F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 4)):
        state = ts.tile.zeros((4,), F)
        for j in ts.tile.range(0, n, 8):
            state = ts.tile.tanh(state + ts.tile.row_sum(ts.tile.mma(x[i : i + 4, j : j + 8], w[j : j + 8, :])))
        y[i : i + 4] = state


@ts.kernel
def as_far_as_the_diagonal(x: ts.Tensor["m", "n", F], w: ts.Tensor["n", 8, F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 4)):
        state = ts.tile.zeros((4,), F)
        for j in ts.tile.range(0, ts.tile.minimum(n, 2 * i), 8):
            state = ts.tile.sin(state + ts.tile.row_sum(ts.tile.mma(x[i : i + 4, j : j + 8], w[j : j + 8, :])))
        y[i : i + 4] = state


@ts.kernel
def from_the_diagonal(x: ts.Tensor["m", "n", F], w: ts.Tensor["n", 8, F], y: ts.Tensor["m", F]):
    for i in ts.tile.grid((m, 4)):
        state = ts.tile.zeros((4,), F)
        for j in ts.tile.range(i, n, 8):
            state = ts.tile.sin(state + ts.tile.row_sum(ts.tile.mma(x[i : i + 4, j : j + 8], w[j : j + 8, :])))
        y[i : i + 4] = state


@ts.kernel
def beside_a_shared_number(
    x: ts.Tensor["m", "n", F], w: ts.Tensor["n", 8, F], u: ts.Tensor[1, F], y: ts.Tensor["m", F]
):
    for i in ts.tile.grid((m, 4)):
        state = ts.tile.zeros((4,), F)
        for j in ts.tile.range(0, n, 8):
            state = ts.tile.sin(state * u[0] + ts.tile.row_sum(ts.tile.mma(x[i : i + 4, j : j + 8], w[j : j + 8, :])))
        y[i : i + 4] = state


@ts.kernel
def of_a_length_in_memory(
    x: ts.Tensor["m", "n", F], w: ts.Tensor["n", 8, F], size: ts.Tensor[1, ts.i32], y: ts.Tensor["m", F]
):
    for i in ts.tile.grid((m, 4)):
        state = ts.tile.zeros((4,), F)
        for j in ts.tile.range(0, size[0], 8):
            state = ts.tile.sin(state + ts.tile.row_sum(ts.tile.mma(x[i : i + 4, j : j + 8], w[j : j + 8, :])))
        y[i : i + 4] = state


def scratch_of(kernel: Any, **constants: Any) -> list[str]:
    """Return the kinds of memory that the adjoint of a kernel uses besides its arguments."""
    facts = [ArgFacts("tensor", param.dtype, (None,) * len(param.dims)) for param in kernel.signature.tensors]
    spec = Specialization(tuple(facts), constexprs=tuple(constants.items()))
    names = [one.name for one in adjoint_kernel(kernel.signature, spec).added if one.role == "scratch"]
    return sorted({name.rpartition(".")[2].rstrip("0123456789") for name in names})


def test_gradients_of_a_product_are_products():
    assert scratch_of(product) == []


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool):
    h, s, t = 2, 9, 13
    arguments = dict(q=numbers(h, s, 8), k=numbers(h, t, 8), v=numbers(h, t, 8), y=np.zeros((h, s, 8)), causal=causal)
    check_slopes(attention, arguments, ["y"], ["q", "k", "v"])
    assert scratch_of(attention, causal=causal) == ["kept"]


ROWS = dict(x=numbers(10, 19), w=numbers(19, 8), y=np.zeros(10))


@pytest.mark.parametrize(
    ("kernel", "more", "memory"),
    [
        (rows_through_a_loop, {}, ["history", "kept"]),
        (as_far_as_the_diagonal, {}, ["history", "kept"]),
        (from_the_diagonal, {}, ["history", "sums"]),
        (beside_a_shared_number, {"u": numbers(1)}, ["history", "sums"]),
        (of_a_length_in_memory, {"size": np.array([13], np.int32)}, ["sums"]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_loops_that_carry_rows(kernel: Any, more: dict[str, Any], memory: list[str]):
    inputs = ["x", "w", *(["u"] if "u" in more else [])]
    check_slopes(kernel, {**ROWS, **more}, ["y"], inputs)
    assert scratch_of(kernel) == memory


@ts.kernel
def softmax_sums(
    q: ts.Tensor["h", "s", 8, F],
    k: ts.Tensor["h", "t", 8, F],
    v: ts.Tensor["h", "t", 8, F],
    y: ts.Tensor["h", "s", 8, F],
    z: ts.Tensor["h", "s", F],
    form: ts.constexpr,
):
    for head, i in ts.tile.grid((h, 1), (s, 4)):
        queries = q[head, i : i + 4, :]
        top, total = ts.tile.full((4,), -float("inf"), F), ts.tile.zeros((4,), F)
        acc = ts.tile.zeros((4, 8), F)
        for j in ts.tile.range(0, t, 8):
            scores = ts.tile.mma(queries, k[head, j : j + 8, :].T)
            scores = ts.tile.where((j + ts.tile.arange(8) < t)[None, :], scores, -float("inf"))
            new = ts.tile.maximum(top, ts.tile.row_max(scores))
            if form == "powers of two":
                decay, p = ts.tile.exp2((top - new) * 0.7), ts.tile.exp2((scores - new[:, None]) * 0.7)
            elif form == "other powers":
                decay, p = ts.tile.exp(top - new), ts.tile.exp((scores - new[:, None]) * 0.7)
            else:
                decay, p = ts.tile.exp(top - new), ts.tile.exp(scores - new[:, None])
            total = decay * total + ts.tile.row_sum(p)
            acc = ts.tile.mma(p, v[head, j : j + 8, :], decay[:, None] * acc)
            top = new
        if form == "a square":
            y[head, i : i + 4, :] = acc / (total * total)[:, None]
            z[head, i : i + 4] = top
        else:
            y[head, i : i + 4, :] = ts.tile.tanh(acc / total[:, None])
            z[head, i : i + 4] = top + (ts.tile.log2(total) / 0.7 if form == "powers of two" else ts.tile.log(total))


@pytest.mark.parametrize(
    ("form", "memory"),
    [
        ("plain", ["kept"]),
        ("powers of two", ["kept"]),
        ("other powers", ["history", "kept"]),
        ("a square", ["history", "kept"]),
    ],
)
def test_sums_against_a_running_maximum(form: str, memory: list[str]):
    """Only what is the same wherever the maximum lies is differentiated against the last one."""
    h, s, t = 2, 7, 13
    arguments = dict(q=numbers(h, s, 8), k=numbers(h, t, 8), v=numbers(h, t, 8), y=np.zeros((h, s, 8)))
    arguments |= dict(z=np.zeros((h, s)), form=form)
    check_slopes(softmax_sums, arguments, ["y", "z"], ["q", "k", "v"])
    assert scratch_of(softmax_sums, form=form) == memory


@ts.kernel
def window(
    q: ts.Tensor["s", 8, F],
    k: ts.Tensor["t", 8, F],
    v: ts.Tensor["t", 8, F],
    y: ts.Tensor["s", 8, F],
    ahead: ts.constexpr,
):
    for (i,) in ts.tile.grid((s, 4)):
        queries = q[i : i + 4, :]
        top, total = ts.tile.full((4,), -float("inf"), F), ts.tile.zeros((4,), F)
        acc = ts.tile.zeros((4, 8), F)
        for j in ts.tile.range(0, ts.tile.minimum(t, i + ahead), 8):
            scores = ts.tile.mma(queries, k[j : j + 8, :].T)
            place = j + ts.tile.arange(8)
            scores = ts.tile.where((place < ts.tile.minimum(t, i + ahead))[None, :], scores, -float("inf"))
            new = ts.tile.maximum(top, ts.tile.row_max(scores))
            decay, p = ts.tile.exp(top - new), ts.tile.exp(scores - new[:, None])
            total = decay * total + ts.tile.row_sum(p)
            acc = ts.tile.mma(p, v[j : j + 8, :], decay[:, None] * acc)
            top = new
        y[i : i + 4, :] = acc / total[:, None]


@pytest.mark.parametrize("ahead", [1, 5, 12])
def test_programs_that_do_not_get_to_a_slice_are_left_out(ahead: int):
    s, t = 22, 27
    arguments = dict(q=numbers(s, 8), k=numbers(t, 8), v=numbers(t, 8), y=np.zeros((s, 8)), ahead=ahead)
    check_slopes(window, arguments, ["y"], ["q", "k", "v"])
