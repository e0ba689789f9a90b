"""The kernels and steps behind `scan`: a program follows some channels through time, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tessera as ts
from tessera.ops import arrays, rows
from tessera.ops.annotations import Constant
from tessera.ops.steps import Arguments, Gradient, Step, like

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
B, L, D = ts.dims("B L D")


@ts.function
def follow(a: Any, x: Any, b: Any, y: Any) -> Any:
    """Return two steps `h -> a h + x` and `h -> b h + y` as one."""
    return a * b, x * b + y


@ts.kernel
def forward(
    gate: ts.Tensor[B, L, D, T],
    x: ts.Tensor[B, L, D, T],
    out: ts.Tensor[B, L, D, T],
    acc: Constant,
    BL: Constant = 64,
    BD: Constant = 16,
):
    """States `h[t] = gate[t] h[t - 1] + x[t]`."""
    for b, d in ts.tile.grid((B, 1), (D, BD)):
        state = ts.tile.zeros((BD,), acc)
        for t in ts.tile.range(0, L, BL):
            a = gate[b, t : t + BL, d : d + BD].to(acc)
            whole, h = ts.tile.associative_scan((a, x[b, t : t + BL, d : d + BD].to(acc)), 0, follow)
            h = h + whole * state[None, :]
            out[b, t : t + BL, d : d + BD] = h
            state = h[BL - 1, :]


@ts.kernel
def backward(
    grad: ts.Tensor[B, L, D, T],
    gate: ts.Tensor[B, L, D, T],
    states: ts.Tensor[B, L, D, T],
    grad_gate: ts.Tensor[B, L, D, T],
    grad_x: ts.Tensor[B, L, D, T],
    acc: Constant,
    BL: Constant = 64,
    BD: Constant = 16,
):
    """Gradients `g[t] = grad[t] + gate[t + 1] g[t + 1]` of `x`, and `g[t] h[t - 1]` of gates, from the last on."""
    for b, d in ts.tile.grid((B, 1), (D, BD)):
        later = ts.tile.zeros((BD,), acc)
        blocks = ts.cdiv(L, BL)
        for i in ts.tile.range(blocks):
            t = (blocks - 1 - i) * BL
            a = gate[b, t + 1 : t + 1 + BL, d : d + BD].to(acc)
            own = grad[b, t : t + BL, d : d + BD].to(acc)
            whole, g = ts.tile.associative_scan((a, own), 0, follow, reverse=True)
            g = g + whole * later[None, :]
            before = states[b, t - 1 : t - 1 + BL, d : d + BD].to(acc)
            grad_x[b, t : t + BL, d : d + BD] = g
            grad_gate[b, t : t + BL, d : d + BD] = g * before
            later = g[0, :]


def _results(gate: Any, x: Any) -> Arguments:
    return (like(x, x.shape),)


def _launch(results: Arguments, gate: Any, x: Any) -> None:
    if prod(x.shape):
        forward(gate, x, results[0], acc=rows.accumulator(arrays.dtype_of(x)))


def _gradient_results(grad: Any, gate: Any, states: Any) -> Arguments:
    return like(gate, gate.shape), like(gate, gate.shape)


def _launch_gradient(results: Arguments, grad: Any, gate: Any, states: Any) -> None:
    if prod(gate.shape):
        backward(grad, gate, states, *results, acc=rows.accumulator(arrays.dtype_of(gate)))


BACKWARD = Step(
    "scan_backward",
    "(Tensor grad, Tensor gate, Tensor states) -> (Tensor, Tensor)",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, results: Arguments) -> Arguments:
    return given[0], results[0]


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    return grads[0], *kept


def _gradients_of(_kept: Arguments) -> tuple[int | None, ...]:
    return 0, 1


FORWARD = Step(
    "scan",
    "(Tensor gate, Tensor x) -> Tensor",
    _results,
    _launch,
    Gradient(BACKWARD, _keep, _gradient_arguments, _gradients_of),
)
