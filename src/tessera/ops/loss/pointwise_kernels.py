"""Losses that each element of two arrays has for itself: one source for all kinds, and for their gradients."""

from __future__ import annotations

from typing import Any

import tessera as ts
from tessera.ops import approximations as about
from tessera.ops.annotations import F64, I64, Constant
from tessera.ops.signs import slope_of_size

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
W = ts.dtype_var("W", ts.bf16, ts.f16, ts.f32, ts.f64)
Q = ts.dtype_var("Q", ts.bf16, ts.f16, ts.f32, ts.f64)
S = ts.dtype_var("S", ts.f32, ts.f64)
N, NW, NQ, G, P = ts.dims("N NW NQ G P")

LN2 = 0.6931471805599453
NEAR = 0.35
"""Where the terms of a divergence are a polynomial of 16 bits."""
NEAR_TERMS = (1.442698476, 0.239954762, 0.106589985)
"""Its coefficients, to base 2: the error is 2^-18.5 at most."""
LEAST_REST = 2.0**-30
LEAST_LOG = -100.0
"""Logarithms of probabilities count as at least so much, as PyTorch has it."""


@ts.function
def repeated(weights: Any, i: Any, count: Any, acc: Any, is_whole: Any) -> Any:
    """Return the weights of elements from `i` on; fewer of them than elements repeat."""
    if is_whole:
        return weights[i : i + count].to(acc)
    return weights[(i + ts.tile.arange(count, dtype=ts.i64)) % weights.shape[0]].to(acc)


@ts.function
def ratio_log(p: Any, q: Any, rough: Any) -> Any:
    """Return log of p over the mean of p and q, 0 where p is 0."""
    return ts.tile.where(p == 0.0, 0.0, about.log(2.0 * (p / (p + q)), rough))


@ts.function
def ratio_log_of_logs(x: Any, y: Any, rough: Any) -> Any:
    """Return the same of logarithms, 0 where x is that of 0."""
    apart = y - x
    grown = ts.tile.maximum(apart, 0.0) + about.log1p(about.exp(-ts.tile.abs(apart), rough), rough)
    return ts.tile.where(x == -float("inf"), 0.0, LN2 - grown)


@ts.function
def shannon(whole: Any, r: Any, rough: Any) -> Any:
    """Return the Jensen-Shannon divergence of numbers whose sum is `whole` and whose difference is its `r`th part."""
    # (1 + r) log(1 + r) + (1 - r) log(1 - r), where r is small without terms that cancel.
    if rough:
        s, up, down = r * r, 1.0 + r, ts.tile.maximum(1.0 - r, LEAST_REST)
        far = up * about.log2_of_normal(up, rough) + down * about.log2_of_normal(down, rough)
        terms = ts.tile.where(r < NEAR, s * (NEAR_TERMS[0] + s * (NEAR_TERMS[1] + s * NEAR_TERMS[2])), far)
        found = 0.25 * LN2 * whole * terms
    else:
        up, down = ts.tile.log1p(r), ts.tile.log1p(-r)
        near, far = r * (up - down) + ts.tile.log1p(-r * r), (1.0 + r) * up + (1.0 - r) * down
        found = 0.25 * whole * ts.tile.where(r == 1.0, 2.0 * LN2, ts.tile.where(r < 0.5, near, far))
    return ts.tile.where(whole == 0.0, 0.0, found)


@ts.function
def tanh_of_half(a: Any, rough: Any) -> Any:
    """Return tanh(a / 2) of numbers from 0 on."""
    power = about.exp(-a, rough)
    if rough:
        t = 0.5 * a
        s = t * t
        near = t * (1.0 + s * (s * (2.0 / 15.0 - s * (17.0 / 315.0)) - 1.0 / 3.0))
        return ts.tile.where(t < 0.25, near, about.quotient(1.0 - power, 1.0 + power, rough))
    return -ts.tile.expm1(-a) / (1.0 + power)


@ts.function
def distance(d: Any, kind: Any, knob: Any) -> Any:
    """Return a loss of differences."""
    size = ts.tile.abs(d)
    if kind == "l1":
        return size
    if kind == "huber":
        least = ts.tile.minimum(size, knob)
        return least * (size - 0.5 * least)
    if kind == "smooth_l1":
        return ts.tile.where(size < knob, 0.5 * d * d / knob, size - 0.5 * knob)
    return d * d


@ts.function
def distance_slope(d: Any, kind: Any, knob: Any) -> Any:
    """Return its derivative."""
    if kind == "l1":
        return slope_of_size(d)
    if kind == "huber":
        return ts.tile.where(ts.tile.abs(d) < knob, d, knob * ts.tile.sign(d))
    if kind == "smooth_l1":
        return ts.tile.where(ts.tile.abs(d) < knob, d / knob, ts.tile.sign(d))
    return 2.0 * d


@ts.function
def with_logits(x: Any, y: Any, pos_weight: Any, rough: Any) -> Any:
    """Return the binary cross entropy of logits."""
    least = about.log1p(about.exp(-ts.tile.abs(x), rough), rough)
    if pos_weight is None:
        return x * (ts.tile.where(x > 0.0, 1.0, 0.0) - y) + least
    positive = pos_weight * y
    least = (positive + (1.0 - y)) * least
    return (1.0 - y) * ts.tile.maximum(x, 0.0) + positive * ts.tile.maximum(-x, 0.0) + least


@ts.function
def loss(x: Any, y: Any, pos_weight: Any, kind: Any, knob: Any, rough: Any) -> Any:
    """Return the losses of elements."""
    if kind == "bce":
        ones = ts.tile.maximum(about.log_of_given(x, rough), LEAST_LOG)
        return (y - 1.0) * ts.tile.maximum(about.log1p(-x, rough), LEAST_LOG) - y * ones
    if kind == "bce_with_logits":
        return with_logits(x, y, pos_weight, rough)
    if kind == "kl":
        return ts.tile.where(y == 0.0, 0.0, y * (about.log_of_given(y, rough) - x))
    if kind == "kl_log":
        return ts.tile.where(y == -float("inf"), 0.0, about.exp(y, rough) * (y - x))
    if kind == "js":
        part = about.quotient(ts.tile.abs(x - y), x + y, rough)
        return shannon(x + y, ts.tile.minimum(part, 1.0) if rough else part, rough)
    if kind == "js_log":
        whole = about.exp(x, rough) + about.exp(y, rough)
        return shannon(whole, tanh_of_half(ts.tile.abs(x - y), rough), rough)
    return distance(x - y, kind, knob)


@ts.function
def slope_of_x(x: Any, y: Any, pos_weight: Any, kind: Any, knob: Any, rough: Any) -> Any:
    """Return the derivatives of losses by `x`."""
    if kind == "bce":
        return (x - y) / ts.tile.maximum((1.0 - x) * x, 1e-12)
    if kind == "bce_with_logits":
        if pos_weight is None:
            return ts.tile.sigmoid(x) - y
        weighted = pos_weight * y
        return (weighted + 1.0 - y) * ts.tile.sigmoid(x) - weighted
    if kind == "kl":
        return -y
    if kind == "kl_log":
        return -about.exp(y, rough)
    if kind == "js":
        return 0.5 * ratio_log(x, y, rough)
    if kind == "js_log":
        return 0.5 * about.exp(x, rough) * ratio_log_of_logs(x, y, rough)
    return distance_slope(x - y, kind, knob)


@ts.function
def slope_of_y(x: Any, y: Any, pos_weight: Any, kind: Any, knob: Any, rough: Any) -> Any:
    """Return the derivatives of losses by `y`."""
    if kind == "bce":
        none = ts.tile.maximum(about.log1p(-x, rough), LEAST_LOG)
        return none - ts.tile.maximum(about.log_of_given(x, rough), LEAST_LOG)
    if kind == "bce_with_logits":
        return -x if pos_weight is None else (pos_weight - 1.0) * ts.tile.softplus(-x) - x
    if kind == "kl":
        return ts.tile.where(y == 0.0, 0.0, about.log_of_given(y, rough) + 1.0) - x
    if kind == "kl_log":
        return ts.tile.where(y == -float("inf"), 0.0, about.exp(y, rough) * (y - x + 1.0))
    if kind == "js" or kind == "js_log":
        return slope_of_x(y, x, pos_weight, kind, knob, rough)
    return -distance_slope(x - y, kind, knob)


@ts.kernel
def elements(
    x: ts.Tensor[N, T],
    y: ts.Tensor[N, T],
    weight: ts.Tensor[NW, W] | None,
    pos_weight: ts.Tensor[NQ, Q] | None,
    out: ts.Tensor[N, T],
    knob: F64,
    kind: Constant,
    whole: Constant,
    rough: Constant,
    acc: Constant,
    B: Constant = 1024,
):
    """Losses of elements, by approximations where `rough`.

    `whole` says of either kind of weights whether each element has its own.
    """
    for i in ts.tile.grid((N, B)):
        pos = None if pos_weight is None else repeated(pos_weight, i, B, acc, whole[1])
        found = loss(x[i : i + B].to(acc), y[i : i + B].to(acc), pos, kind, knob.to(acc), rough)
        out[i : i + B] = found if weight is None else found * repeated(weight, i, B, acc, whole[0])


@ts.function
def weighted(
    x: Any, y: Any, weight: Any, pos_weight: Any, i: Any, kind: Any, knob: Any, whole: Any, rough: Any, acc: Any, B: Any
) -> Any:
    """Return the losses of a block of elements, times their weights."""
    pos = None if pos_weight is None else repeated(pos_weight, i, B, acc, whole[1])
    found = loss(x[i : i + B].to(acc), y[i : i + B].to(acc), pos, kind, knob, rough)
    return found if weight is None else found * repeated(weight, i, B, acc, whole[0])


@ts.kernel
def sums(
    x: ts.Tensor[N, T],
    y: ts.Tensor[N, T],
    weight: ts.Tensor[NW, W] | None,
    pos_weight: ts.Tensor[NQ, Q] | None,
    parts: ts.Tensor[P, S],
    each: I64,
    knob: F64,
    kind: Constant,
    whole: Constant,
    rough: Constant,
    acc: Constant,
    B: Constant = 1024,
    F: Constant = 1,
):
    """Sums of the losses of `each` elements a program, `F` of each block first: so many more of them are in flight."""
    ts.assume(each % B == 0)
    for part in ts.tile.grid((P, 1)):
        added = ts.tile.zeros((B // F,), acc)
        end = min((part + 1) * each, N)
        past = part * each + (end - part * each) // B * B
        for i in ts.tile.range(part * each, past, B):
            found = weighted(x, y, weight, pos_weight, i, kind, knob.to(acc), whole, rough, acc, B)
            added = added + (found if F == 1 else ts.tile.sum(found.reshape(F, B // F), axis=0))
        rest = 0.0
        if past < end:
            found = weighted(x, y, weight, pos_weight, past, kind, knob.to(acc), whole, rough, acc, B)
            rest = ts.tile.sum(ts.tile.where(ts.tile.arange(B) < (end - past).to(ts.i32), found, 0.0))
        parts[part] = ts.tile.sum(added) + rest


@ts.kernel
def gradients(
    grad: ts.Tensor[G, T],
    x: ts.Tensor[N, T],
    y: ts.Tensor[N, T],
    weight: ts.Tensor[NW, W] | None,
    pos_weight: ts.Tensor[NQ, Q] | None,
    over: ts.Tensor[1, S] | None,
    grad_x: ts.Tensor[N, T] | None,
    grad_y: ts.Tensor[N, T] | None,
    knob: F64,
    scale: F64,
    kind: Constant,
    whole: Constant,
    reduced: Constant,
    rough: Constant,
    acc: Constant,
    B: Constant = 1024,
):
    """Gradients of elements by that of each loss, or by that of their sum times `scale`, divided by `over`."""
    for i in ts.tile.grid((N, B)):
        left, right = x[i : i + B].to(acc), y[i : i + B].to(acc)
        pos = None if pos_weight is None else repeated(pos_weight, i, B, acc, whole[1])
        g = (grad[0] if reduced else grad[i : i + B]).to(acc) * scale.to(acc)
        if over is not None:
            g = g / over[0].to(acc)
        if weight is not None:
            g = g * repeated(weight, i, B, acc, whole[0])
        if grad_x is not None:
            grad_x[i : i + B] = g * slope_of_x(left, right, pos, kind, knob.to(acc), rough)
        if grad_y is not None:
            grad_y[i : i + B] = g * slope_of_y(left, right, pos, kind, knob.to(acc), rough)
