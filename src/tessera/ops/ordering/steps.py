"""The steps behind `sort` and `topk`: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.driver.variants import destination_of
from tessera.numerics.dtypes import DType, i64
from tessera.ops import arrays
from tessera.ops.ordering import kernels, long_kernels
from tessera.ops.reduce.steps import blocks, last_of
from tessera.ops.steps import Arguments, Gradient, Step, like

_WHOLE, _WHOLE_ON_GPUS = 65536, 16384
"""Elements of a row that a program has at once; longer ones are ordered in runs, which are merged. On GPUs the
registers of a program hold 16384 elements and their places."""
RUN = 8192
"""Elements of a run."""
_MERGED = 1024
"""Elements that a program merges."""
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


def is_long(length: int, is_gpu: bool) -> bool:
    """Return whether rows have more elements than a program has at once."""
    return length > (_WHOLE_ON_GPUS if is_gpu else _WHOLE)


def behind_all(dtype: DType, kind: str) -> Any:
    """Return what stands behind all numbers in an order, None for NaN."""
    return None if dtype.is_float and kind == "min" else last_of(dtype, "min" if kind == "min" else "max")


def constants(shape: Sequence[int], dtype: DType, kind: str, count: int | None, is_gpu: bool) -> dict[str, Any]:
    """Return the constants of a kernel for a shape and so many elements, None for all.

    Numbers of elements are rounded up, so that many of them share a kernel.
    """
    along = power_above(shape[1])
    others = min(power_above(shape[0] if len(shape) == 2 else shape[2]), max(_TOGETHER // along, 1))
    is_whole = count is None or (is_gpu and along * max(dtype.bytes, 4) > _SHARED)
    top = None if count is None or is_whole else power_above(count)
    return {
        "kind": kind,
        "last": behind_all(dtype, kind),
        "top": top,
        "BN": along,
        "BA" if len(shape) == 2 else "BB": others,
        "BK": along if top is None else top,
    }


def _results(x: Any, kind: str, count: Any) -> Arguments:
    shape = (x.shape[0], x.shape[1] if count is None else count, *x.shape[2:])
    return like(x, shape), like(x, shape, i64)


def _launch(results: Arguments, x: Any, kind: str, count: int | None) -> None:
    if 0 not in results[0].shape:
        LAST[count is None] = _ordered(x, results, kind, count)


def _ordered(x: Any, results: Arguments, kind: str, count: int | None) -> Any:
    """Order rows `(A, N)` or blocks `(A, N, B)` along N, and return the kernel that ran last."""
    shape = tuple(map(int, x.shape))
    is_gpu = bool(destination_of(arrays.view(x, "input").device).record().simt)
    if is_long(shape[1], is_gpu):
        along, values, places = (one.reshape(*one.shape[:2], -1) for one in (x, *results))
        return _merged(along, values, places, kind)
    kernel = kernel_of(shape)
    kernel(x, *results, **constants(shape, arrays.dtype_of(x), kind, count, is_gpu))
    return kernel


def _merged(x: Any, values: Any, places: Any, kind: str) -> Any:
    """Order long blocks `(A, N, B)` by merging runs, and return the kernel that ran last.

    Of the few elements that are wanted, only the first of each run can be any.
    """
    outer, size, inner = map(int, x.shape)
    wanted, pieces = int(values.shape[1]), -(-size // RUN)
    if 2 * pieces * wanted <= size:
        some = _pair(x, (outer, pieces * wanted, inner))
        _order_runs(x, some, kind, wanted)
        _ordered(some[0], (values, places), kind, wanted)
        long_kernels.follow(some[1], places, BN=_MERGED)
        return long_kernels.follow
    levels = (pieces - 1).bit_length()
    end = (values, places) if wanted == size else _pair(x, (outer, size, inner))
    other = _pair(x, (outer, size, inner))
    here, there = (other, end) if levels % 2 else (end, other)
    _order_runs(x, here, kind, RUN)
    for level in range(levels):
        run = RUN << level
        _run(long_kernels.merge, (*here, *there, run, run.bit_length()), {"kind": kind, "BN": _MERGED})
        here, there = there, here
    if wanted != size:
        _run(long_kernels.leading, (*end, values, places), {"BN": _MERGED})
    return long_kernels.merge


def _pair(x: Any, shape: tuple[int, ...]) -> Arguments:
    """Return unset elements and places."""
    return like(x, shape), like(x, shape, i64)


def _order_runs(x: Any, found: Arguments, kind: str, each: int) -> None:
    """Order the runs of long blocks, and keep the first `each` elements of every one."""
    top = None if each == RUN else power_above(each)
    given = {"kind": kind, "last": behind_all(arrays.dtype_of(x), kind), "top": top}
    _run(long_kernels.runs, (x, *found, each), given | {"BN": RUN, "BK": RUN if top is None else top})


def _run(kernel: Any, arguments: Arguments, constants: dict[str, Any]) -> None:
    kernel(*arguments, **constants)


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
    tangents="linear",
    transposed="taken",
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
    "taken",
)
"""Kind `min` puts the smallest first, `max` the largest."""
