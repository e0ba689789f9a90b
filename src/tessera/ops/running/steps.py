"""The steps behind running sums and products: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.numerics.dtypes import BY_NAME, DType, f32, f64
from tessera.ops import arrays, rows
from tessera.ops.reduce.steps import accumulator, blocks
from tessera.ops.running import kernels
from tessera.ops.steps import Arguments, Gradient, Step, like
from tessera.runtime.device import CPU

_PROGRAMS_A_UNIT, _LEAST_STEPS = 8, 4
"""Programs of a multiprocessor, and the fewest blocks of a part."""
LAST: dict[str, Any] = {}
"""The kernel that ran last, by the kind of combination."""


def forward_kernel(shape: Sequence[int]) -> Any:
    """Return the kernel for rows `(A, N)` or blocks `(A, N, B)`."""
    return kernels.rows if len(shape) == 2 else kernels.columns


def summed_in(given: DType, wanted: DType, device: str) -> DType:
    """Return the dtype that is computed in: on CPUs f64 for f32, whose errors would grow with the length."""
    found = accumulator(given, wanted)
    return f64 if device == CPU.kind and wanted == f32 and given.is_float else found


def parts_of(x: Any, block: Mapping[str, int]) -> tuple[int, int]:
    """Return in how many parts a GPU takes the dimension along which something runs, and the blocks of one.

    A part's elements are read twice, so a machine that is busy with whole rows has no parts.

    Args:
        x: rows `(A, N)` or blocks `(A, N, B)`.
        block: of a program, as `blocks` returns it.
    """
    shape = tuple(map(int, x.shape))
    steps = -(-shape[1] // block["BN"])
    across = -(-shape[0] // block["BA"]) if len(shape) == 2 else shape[0] * -(-shape[2] // block["BB"])
    most = rows.most_programs(x, _PROGRAMS_A_UNIT) if rows.is_simt(x) else 1
    each = -(-steps // max(1, min(most // across, steps // _LEAST_STEPS)))
    return -(-steps // each), each


def run(x: Any, y: Any, kind: str, reverse: bool, acc: DType, block: Mapping[str, int], parts: int, each: int) -> None:
    """Write what runs along a dimension, in parts where there are several.

    Args:
        x: rows `(A, N)` or blocks `(A, N, B)`.
        y: what is written, as `x`.
        kind: `sum` or `prod`.
        reverse: from the end.
        acc: what it is computed in.
        block: of a program.
        parts: how many.
        each: blocks of one.
    """
    starts = None
    if parts > 1:
        totals, starts = (like(x, (x.shape[0], parts, *x.shape[2:]), acc) for _ in range(2))
        by_parts = kernels.row_totals if len(x.shape) == 2 else kernels.column_totals
        by_parts(x, totals, kind=kind, each=each, **block)
        own = blocks(tuple(map(int, totals.shape)))
        run(totals, starts, kind, reverse, acc, own, 1, -(-parts // own["BN"]))
    forward_kernel(x.shape)(x, starts, y, kind=kind, reverse=reverse, acc=acc, each=each, **block)


def _run(x: Any, y: Any, kind: str, reverse: bool) -> None:
    if 0 in x.shape:
        return
    shape = tuple(map(int, x.shape))
    LAST[kind] = forward_kernel(shape)
    acc = summed_in(arrays.dtype_of(x), arrays.dtype_of(y), arrays.view(x, "input").device.kind)
    block = blocks(shape)
    run(x, y, kind, reverse, acc, block, *parts_of(x, block))


def _results(x: Any, dtype: str) -> Arguments:
    return (like(x, x.shape, BY_NAME[dtype]),)


def _launch_sums(results: Arguments, x: Any, dtype: str) -> None:
    _run(x, results[0], "sum", False)


def _launch_sums_gradient(results: Arguments, grad: Any, dtype: str) -> None:
    _run(grad, results[0], "sum", True)


def _sums_again(back: Any, grad: Any, dtype: str) -> Any:
    return CUMSUM(back, arrays.dtype_of(grad).name)[0]


CUMSUM_BACKWARD = Step(
    "cumsum_backward",
    "(Tensor grad, str dtype) -> Tensor",
    _results,
    _launch_sums_gradient,
    tangents="linear",
    transposed=_sums_again,
)

CUMSUM = Step(
    "cumsum",
    "(Tensor x, str dtype) -> Tensor",
    _results,
    _launch_sums,
    Gradient(
        CUMSUM_BACKWARD,
        lambda given, _results: (arrays.dtype_of(given[0]).name,),
        lambda kept, grads, _needed: (grads[0], *kept),
        lambda _kept: (0, None),
    ),
    "linear",
)


def _launch_products(results: Arguments, x: Any, dtype: str) -> None:
    _run(x, results[0], "prod", False)


def _gradient_results(grad: Any, x: Any, y: Any) -> Arguments:
    return (like(x, x.shape),)


def _launch_products_gradient(results: Arguments, grad: Any, x: Any, y: Any) -> None:
    if 0 in x.shape:
        return
    shape = tuple(map(int, x.shape))
    kernel = kernels.row_products_backward if len(shape) == 2 else kernels.column_products_backward
    acc = accumulator(arrays.dtype_of(x), arrays.dtype_of(y))
    kernel(grad, x, y, results[0], acc=acc, **blocks(shape))


CUMPROD_BACKWARD = Step(
    "cumprod_backward", "(Tensor grad, Tensor x, Tensor y) -> Tensor", _gradient_results, _launch_products_gradient
)

CUMPROD = Step(
    "cumprod",
    "(Tensor x, str dtype) -> Tensor",
    _results,
    _launch_products,
    Gradient(
        CUMPROD_BACKWARD,
        lambda given, results: (given[0], results[0]),
        lambda kept, grads, _needed: (grads[0], *kept),
        lambda _kept: (0, None),
    ),
)
