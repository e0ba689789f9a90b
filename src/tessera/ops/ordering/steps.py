"""The steps behind `sort` and `topk`: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.driver.variants import destination_of
from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType, i64
from tessera.ops import arrays
from tessera.ops.ordering import kernels
from tessera.ops.reduce.steps import blocks, last_of
from tessera.ops.steps import Arguments, Gradient, Step, like

MOST = 65536
"""Elements of a row that a program has at once; half of them on GPUs."""
_SHARED = 65536
"""Bytes of a row that GPUs choose a few elements of in shared memory; longer rows are put in order as a whole."""
_TOGETHER = 512
"""Elements that a program orders at once where rows are shorter."""
_MOVED = 2048
"""Elements that a program moves at once."""
LAST: dict[bool, Any] = {}
"""The kernel that ran last, by whether all elements were wanted."""


def power_above(count: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << max(count - 1, 0).bit_length()


def kernel_of(shape: Sequence[int]) -> Any:
    """Return the kernel for rows `(A, N)` or blocks `(A, N, B)`."""
    return kernels.rows if len(shape) == 2 else kernels.columns


def check_length(length: Any, most: int = MOST) -> None:
    """Refuse rows that no program has at once.

    Raises:
        CallError: `too-long`.
    """
    if length > most:
        raise CallError(
            f"a row has {length} elements",
            code="too-long",
            location=caller_location(),
            help=f"it takes up to {most} along the dimension",
        )


def constants(shape: Sequence[int], dtype: DType, kind: str, count: int | None, is_gpu: bool) -> dict[str, Any]:
    """Return the constants of a kernel for a shape and so many elements, None for all.

    Numbers of elements are rounded up, so that many of them share a kernel.
    """
    along = power_above(shape[1])
    others = min(power_above(shape[0] if len(shape) == 2 else shape[2]), max(_TOGETHER // along, 1))
    is_whole = count is None or (is_gpu and along * max(dtype.bytes, 4) > _SHARED)
    top = None if count is None or is_whole else power_above(count)
    opposite = "min" if kind == "min" else "max"
    last = None if dtype.is_float and kind == "min" else last_of(dtype, opposite)
    return {
        "kind": kind,
        "last": last,
        "top": top,
        "BN": along,
        "BA" if len(shape) == 2 else "BB": others,
        "BK": along if top is None else top,
    }


def _results(x: Any, kind: str, count: Any) -> Arguments:
    shape = (x.shape[0], x.shape[1] if count is None else count, *x.shape[2:])
    return like(x, shape), like(x, shape, i64)


def _launch(results: Arguments, x: Any, kind: str, count: int | None) -> None:
    if 0 in results[0].shape:
        return
    shape = tuple(map(int, x.shape))
    is_gpu = destination_of(arrays.view(x, "input").device).record().simt
    check_length(shape[1], MOST // 2 if is_gpu else MOST)
    kernel = LAST[count is None] = kernel_of(shape)
    kernel(x, *results, **constants(shape, arrays.dtype_of(x), kind, count, is_gpu))


def _gradient_results(grad: Any, places: Any, size: Any) -> Arguments:
    return (like(grad, (grad.shape[0], size, *grad.shape[2:])),)


def _launch_gradient(results: Arguments, grad: Any, places: Any, size: int) -> None:
    shape = tuple(map(int, grad.shape))
    if shape[1] < int(size):
        arrays.zero(results[0])
    if 0 in shape:
        return
    kernel: Any = kernels.rows_backward if len(shape) == 2 else kernels.columns_backward
    names = {"BN": "BK"}
    block = {names.get(name, name): size for name, size in blocks(shape, _MOVED).items()}
    kernel(grad, places, results[0], **block)


BACKWARD = Step(
    "ordered_backward",
    "(Tensor grad, Tensor places, SymInt size) -> Tensor",
    _gradient_results,
    _launch_gradient,
)

ORDER = Step(
    "ordered",
    "(Tensor x, str kind, SymInt? count) -> (Tensor, Tensor)",
    _results,
    _launch,
    Gradient(
        BACKWARD,
        lambda given, results: (results[1], given[0].shape[1]),
        lambda kept, grads, _needed: (grads[0], *kept),
        lambda _kept: (0, None, None),
    ),
)
"""Kind `min` puts the smallest first, `max` the largest."""
