"""L2 normalisation: vectors along a dimension, divided by their length."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

import tessera as ts
from tessera.driver.compile import compile as compiled
from tessera.numerics.dtypes import DType, bf16
from tessera.ops import arrays, axes, rows
from tessera.ops.annotations import F64, Constant
from tessera.ops.operation import library_op
from tessera.ops.refusals import checked
from tessera.ops.steps import Arguments, Gradient, Step, is_followed, like, present
from tessera.target.artifact import Artifact

T = ts.dtype_var("T", ts.bf16, ts.f16, ts.f32, ts.f64)
L = ts.dtype_var("L", ts.f32, ts.f64)
A, N, B = ts.dims("A N B")


@ts.kernel
def forward_rows(x: ts.Tensor[A, N, T], y: ts.Tensor[A, N, T], length: ts.Tensor[A, L] | None, eps: F64, acc: Constant):
    """Divide rows by their lengths, and keep these."""
    for a in ts.tile.grid((A, 1)):
        row = x[a, :].to(acc)
        size = ts.tile.sqrt(ts.tile.sum(row * row))
        if length is not None:
            length[a] = size
        y[a, :] = row / ts.tile.maximum(size, eps.to(acc))


@ts.kernel
def backward_rows(
    grad: ts.Tensor[A, N, T],
    x: ts.Tensor[A, N, T],
    length: ts.Tensor[A, L],
    grad_x: ts.Tensor[A, N, T],
    eps: F64,
    acc: Constant,
):
    """Gradients of rows: (g - y·sum(g·y)) / length, or g / eps of rows that are shorter."""
    for a in ts.tile.grid((A, 1)):
        g, size, least = grad[a, :].to(acc), length[a], eps.to(acc)
        normal = x[a, :].to(acc) / ts.tile.maximum(size, least)
        along = ts.tile.where(size > least, ts.tile.sum(g * normal), 0.0)
        grad_x[a, :] = (g - normal * along) / ts.tile.maximum(size, least)


@ts.kernel
def forward_columns(
    x: ts.Tensor[A, N, B, T],
    y: ts.Tensor[A, N, B, T],
    length: ts.Tensor[A, B, L] | None,
    eps: F64,
    acc: Constant,
    BN: Constant = 16,
    BB: Constant = 64,
):
    """The same along a dimension in the middle, which is read twice."""
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        total = ts.tile.zeros((BN, BB), acc)
        for n in ts.tile.range(0, N, BN):
            block = x[a, n : n + BN, b : b + BB].to(acc)
            total = total + block * block
        size = ts.tile.sqrt(ts.tile.sum(total, 0))
        if length is not None:
            length[a, b : b + BB] = size
        size = ts.tile.maximum(size, eps.to(acc))
        for n in ts.tile.range(0, N, BN):
            y[a, n : n + BN, b : b + BB] = x[a, n : n + BN, b : b + BB].to(acc) / size


@ts.kernel
def backward_columns(
    grad: ts.Tensor[A, N, B, T],
    x: ts.Tensor[A, N, B, T],
    length: ts.Tensor[A, B, L],
    grad_x: ts.Tensor[A, N, B, T],
    eps: F64,
    acc: Constant,
    BN: Constant = 16,
    BB: Constant = 64,
):
    """Gradients along a dimension in the middle."""
    for a, b in ts.tile.grid((A, 1), (B, BB)):
        size, least = length[a, b : b + BB], eps.to(acc)
        whole = ts.tile.maximum(size, least)
        total = ts.tile.zeros((BN, BB), acc)
        for n in ts.tile.range(0, N, BN):
            total = total + grad[a, n : n + BN, b : b + BB].to(acc) * (x[a, n : n + BN, b : b + BB].to(acc) / whole)
        along = ts.tile.where(size > least, ts.tile.sum(total, 0), 0.0)
        for n in ts.tile.range(0, N, BN):
            normal = x[a, n : n + BN, b : b + BB].to(acc) / whole
            grad_x[a, n : n + BN, b : b + BB] = (grad[a, n : n + BN, b : b + BB].to(acc) - normal * along) / whole


def _results(x: Any, eps: float, keeps: bool) -> Arguments:
    lengths = (x.shape[0], *x.shape[2:]) if keeps else (0,) * (len(x.shape) - 1)
    return like(x, x.shape), like(x, lengths, rows.accumulator(arrays.dtype_of(x)))


def _launch(results: Arguments, x: Any, eps: float, keeps: bool) -> None:
    if 0 not in x.shape:
        kernel = forward_rows if len(x.shape) == 2 else forward_columns
        kernel(x, results[0], present(results[1]), eps, acc=rows.accumulator(arrays.dtype_of(x)))


def _gradient_results(grad: Any, x: Any, length: Any, eps: float) -> Arguments:
    return (like(x, x.shape),)


def _launch_gradient(results: Arguments, grad: Any, x: Any, length: Any, eps: float) -> None:
    if 0 not in x.shape:
        kernel = backward_rows if len(x.shape) == 2 else backward_columns
        kernel(grad, x, length, results[0], eps, acc=rows.accumulator(arrays.dtype_of(x)))


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    return grads[0], *kept


BACKWARD = Step(
    "norm_l2_backward",
    "(Tensor grad, Tensor x, Tensor length, float eps) -> Tensor",
    _gradient_results,
    _launch_gradient,
)

FORWARD = Step(
    "norm_l2",
    "(Tensor x, float eps, bool keeps) -> (Tensor, Tensor)",
    _results,
    _launch,
    Gradient(
        BACKWARD,
        lambda given, results: (given[0], results[1], given[1]),
        _gradient_arguments,
        lambda _kept: (0, None, None),
    ),
)


@library_op
class L2:
    """L2 normalisation; `__call__` says what it takes."""

    @checked
    def __call__(self, input: Any, dim: int | Sequence[int] = 1, eps: float = 1e-12, *, out: Any = None) -> Any:
        """Return `x / max(sqrt(sum(x²)), eps)` along a dimension, as `torch.nn.functional.normalize` with `p=2`.

        Args:
            input: f64, f32, bf16 or f16, of any shape.
            dim: the dimension, or several whose elements make one vector together.
            eps: the least length that is divided by.
            out: array for the result.

        Returns:
            An array as `input`. PyTorch tensors that need gradients have them.

        Raises:
            CallError: `not-an-array`, `wrong-shape`, `wrong-dtype`, `bad-axis`, `bad-argument`, or
                `out-needs-no-gradient`.

        Numerics:
            Squares are added up in f32 (f64 for f64), without scaling: lengths from 1.8e19 on are inf.
        """
        shape, dims, x = _folded(input, dim)
        keeps = is_followed((x,))
        if out is None:
            return axes.unfolded(FORWARD(x, float(eps), keeps)[0], shape, dims)
        rows.checked_out(out, shape, arrays.dtype_of(input), input)
        goal = axes.place_along(out, dims, tuple(x.shape))
        if goal is None:
            out[...] = axes.unfolded(FORWARD(x, float(eps), False)[0], shape, dims)
        else:
            FORWARD.into((goal, FORWARD.results(x, eps, False)[1]), x, float(eps), False)
        return out

    def backward(self, grad: Any, input: Any, dim: int | Sequence[int] = 1, eps: float = 1e-12) -> dict[str, Any]:
        """Return the gradient of a call by its argument's name.

        Args:
            grad: gradient of the result.
            input: as in the call.
            dim: as in the call.
            eps: as in the call.

        Raises:
            CallError: as for the call.
        """
        shape, dims, x = _folded(input, dim)
        rows.same_shape(grad, "grad", shape)
        length = FORWARD.fresh(x, float(eps), True)[1]
        found = BACKWARD.fresh(axes.folded(grad, dims), x, length, float(eps))
        return {"input": axes.unfolded(found[0], shape, dims)}

    def explain(self) -> Any:
        """Return what the last forward kernel of rows ran: backend, schedule, emulations.

        Raises:
            CallError: `never-run` before the first call.
        """
        return forward_rows.explain()

    @staticmethod
    def compile(width: int, dtype: DType = bf16, *, target: str | None = None, dump: Sequence[str] = ()) -> Artifact:
        """Return the forward kernel for rows of a width; needs no device.

        Args:
            width: elements of a row.
            dtype: of input and result.
            target: as for `ts.compile`.
            dump: as for `ts.compile`.
        """
        given: dict[str, Any] = {"T": dtype, "length": None, "acc": rows.accumulator(dtype)}
        return compiled(forward_rows, target, dump, {"N": width}, **given)

    @staticmethod
    def reference(input: Any, dim: int | Sequence[int] = 1, eps: float = 1e-12) -> Any:
        """Return the exact result in NumPy and float64."""
        x = arrays.host(input)
        along = axes.chosen(dim, x.ndim)
        return x / np.maximum(np.sqrt((x * x).sum(along, keepdims=True)), eps)

    @staticmethod
    def flops(shape: Sequence[int]) -> int:
        """Return the operations of a call."""
        return 3 * prod(shape)

    @staticmethod
    def bytes(shape: Sequence[int], dtype: DType) -> int:
        """Return the bytes of input and result, each once."""
        return 2 * prod(shape) * dtype.bytes


def _folded(input: Any, dim: int | Sequence[int]) -> tuple[tuple[Any, ...], tuple[int, ...], Any]:
    """Return the shape, the dimensions, and the array with these as one."""
    shape = arrays.shape_of(input, "input")
    rows.float_dtype(input, "input")
    dims = axes.chosen(dim, len(shape))
    return shape, dims, axes.folded(input, dims)


l2 = L2()
"""L2 normalisation; see `L2.__call__`."""
