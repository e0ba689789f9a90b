"""Logarithms of running sums of exponentials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tessera.numerics.dtypes import DType
from tessera.ops import arrays, axes
from tessera.ops.reduce.steps import blocks
from tessera.ops.running import logarithm_kernels as kernels
from tessera.ops.running.steps import parts_of, summed_in
from tessera.ops.steps import Arguments, Step, like

_BLOCK = 512
"""Elements that a program takes at once: each has two numbers."""


def _results(x: Any) -> Arguments:
    return (like(x, x.shape),)


def _launch(results: Arguments, x: Any) -> None:
    if 0 in x.shape:
        return
    shape, dtype = tuple(map(int, x.shape)), arrays.dtype_of(x)
    acc = summed_in(dtype, dtype, arrays.view(x, "input").device.kind)
    block = blocks(shape, _BLOCK)
    run(x, results[0], acc, block, *parts_of(x, block))


def run(x: Any, y: Any, acc: DType, block: Mapping[str, int], parts: int, each: int) -> None:
    """Write the logarithms along a dimension, in parts where there are several.

    Args:
        x: rows `(A, N)` or blocks `(A, N, B)`.
        y: what is written, as `x`.
        acc: what they are computed in.
        block: of a program.
        parts: how many.
        each: blocks of one.
    """
    by_rows, starts = len(x.shape) == 2, None
    if parts > 1:
        totals, starts = (like(x, (x.shape[0], parts, *x.shape[2:]), acc) for _ in range(2))
        (kernels.row_totals if by_rows else kernels.column_totals)(x, totals, each=each, **block)
        own = blocks(tuple(map(int, totals.shape)), _BLOCK)
        run(totals, starts, acc, own, 1, -(-parts // own["BN"]))
    kernel: Any = kernels.rows if by_rows else kernels.columns
    kernel(x, starts, y, acc=acc, each=each, **block)


LOGCUMSUMEXP = Step("logcumsumexp", "(Tensor x) -> Tensor", _results, _launch)


def logcumsumexp(input: Any, dim: int) -> Any:
    """Return the logarithm of the sum of the exponentials of each element and all before it along a dimension.

    Args:
        input: f64, f32, bf16 or f16.
        dim: the dimension, counted from the end when negative.

    Numerics:
        Computed in f32 (f64 for f64, and for f32 on CPUs) as pairs of a largest element and the sum of the exponentials
        of what is apart from it; rounded once.

    Source: `torch.logcumsumexp`; Blelloch, Prefix sums and their applications, 1990.
    """
    shape = arrays.shape_of(input, "input")
    dims = axes.chosen(dim, len(shape))
    return axes.unfolded(LOGCUMSUMEXP(axes.folded(input, dims))[0], shape, dims)
