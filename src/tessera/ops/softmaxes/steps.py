"""The steps behind softmax, its logarithm and logsumexp: results, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.numerics.dtypes import BY_NAME, DType
from tessera.ops import arrays, rows
from tessera.ops.lengths import Lengths, piece
from tessera.ops.softmaxes import kernels
from tessera.ops.steps import Arguments, Gradient, Step, like

WIDEST_ROWS = 65536
"""Bytes of a row, as it is computed, from which on it is taken by pieces: a program has no room for more."""

_FEW_PROGRAMS = 256
_MOST_KEPT, _KEPT_PROGRAMS = 16384, 3
"""Elements of rows that are kept whole, and programs of a multiprocessor that have room for theirs."""
_FORWARD_LENGTHS, _BACKWARD_LENGTHS = Lengths(), Lengths()


def is_wide(width: int, acc: DType) -> bool:
    """Return whether rows are taken by pieces."""
    return width * acc.bytes > WIDEST_ROWS


def _are_kept(y: Any, width: int) -> bool:
    """Return whether a GPU's shared memory keeps rows of both arrays for after their sum (`schedule.gpu.keep_rows`)."""
    record, padded = rows.record_of(y), 1 << (width - 1).bit_length()
    size = 2 * padded * arrays.dtype_of(y).bytes
    return record.simt and width % 8 == 0 and padded <= _MOST_KEPT and _KEPT_PROGRAMS * size <= record.shared_bytes


def accumulator(*dtypes: DType) -> DType:
    """Return the dtype that is computed in: f64 where one is, else f32."""
    return rows.accumulator(next((one for one in dtypes if one.name == "f64"), dtypes[0]))


def forward_kernel(shape: Sequence[int], acc: DType) -> Any:
    """Return the kernel for rows `(M, N)` or blocks `(A, N, B)`."""
    if len(shape) == 3:
        return kernels.columns
    return kernels.wide_rows if is_wide(shape[1], acc) else kernels.rows


def column_blocks(shape: Sequence[int]) -> dict[str, int]:
    """Return the block of a kernel for `(A, N, B)`: narrow where few programs would work."""
    if shape[0] * -(-shape[2] // 128) < _FEW_PROGRAMS:
        return {"BN": 64, "BB": 32}
    return {"BN": 16, "BB": 128}


LAST: dict[str, Any] = {}
"""The kernel that ran last, by the form of results."""


def _forward(form: str, acc: DType, x: Any, mask: Any, y: Any, sums: Any, scale: float, queries: int) -> None:
    """Run a kernel."""
    kernel = LAST[form] = forward_kernel(tuple(map(int, x.shape)), acc)
    if len(x.shape) == 3:
        kernel(x, y, sums, scale, form=form, acc=acc, **column_blocks(tuple(map(int, x.shape))))
        return
    boolean = mask is not None and arrays.dtype_of(mask).name == "bool"
    options: dict[str, Any] = {"form": form, "boolean": boolean, "causal": queries > 0, "acc": acc}
    width = int(x.shape[1])
    if kernel is kernels.rows and _FORWARD_LENGTHS.are_many_before(width):
        kernel = LAST[form] = kernels.wide_rows
        options["BN"] = piece(width)
    kernel(x, mask, y, sums, scale, queries, **options)


def _results(x: Any, mask: Any, scale: Any, queries: Any, form: str, dtype: str) -> Arguments:
    return (like(x, x.shape, BY_NAME[dtype]),)


def _launch(results: Arguments, x: Any, mask: Any, scale: float, queries: int, form: str, dtype: str) -> None:
    if 0 in x.shape:
        return
    acc = accumulator(arrays.dtype_of(x), BY_NAME[dtype])
    _forward(form, acc, x, mask, results[0], None, scale, queries)


def _gradient_results(grad: Any, y: Any, scale: Any, form: str, masked: bool, dtype: str) -> Arguments:
    return (like(y, y.shape, BY_NAME[dtype]),)


def _launch_gradient(results: Arguments, grad: Any, y: Any, scale: float, form: str, masked: bool, dtype: str) -> None:
    if 0 in y.shape:
        return
    acc = accumulator(arrays.dtype_of(y), BY_NAME[dtype])
    if len(y.shape) == 3:
        block = column_blocks(tuple(map(int, y.shape)))
        kernels.columns_backward(grad, y, results[0], scale, form=form, acc=acc, **block)
        return
    width, options = int(y.shape[1]), dict[str, Any](form=form, masked=masked, acc=acc)
    if (is_wide(2 * width, acc) and not _are_kept(y, width)) or _BACKWARD_LENGTHS.are_many_before(width):
        kernels.wide_rows_backward(grad, y, results[0], scale, **options, BN=piece(width))
    else:
        kernels.rows_backward(grad, y, results[0], scale, **options)


SOFTMAX_BACKWARD = Step(
    "softmax_backward",
    "(Tensor grad, Tensor y, float scale, str form, bool masked, str dtype) -> Tensor",
    _gradient_results,
    _launch_gradient,
)


def _keep(given: Arguments, results: Arguments) -> Arguments:
    x, mask, scale, queries, form, _dtype = given
    return results[0], scale, form, mask is not None or queries > 0, arrays.dtype_of(x).name


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], needed: Sequence[bool]) -> Arguments:
    return grads[0], *kept


SOFTMAX = Step(
    "softmax",
    "(Tensor x, Tensor? mask, float scale, SymInt queries, str form, str dtype) -> Tensor",
    _results,
    _launch,
    Gradient(SOFTMAX_BACKWARD, _keep, _gradient_arguments, lambda _kept: (0, None, None, None, None, None)),
)


def _sums_results(x: Any) -> Arguments:
    return (like(x, (x.shape[0], *x.shape[2:])),)


def _launch_sums(results: Arguments, x: Any) -> None:
    (sums,) = results
    if 0 in sums.shape:
        return
    acc = rows.accumulator(arrays.dtype_of(x))
    if 0 in x.shape:
        sums[...] = -float("inf")
    else:
        _forward("sums", acc, x, None, None, sums, 1.0, 0)


def _sums_gradient_results(grad: Any, x: Any, sums: Any) -> Arguments:
    return (like(x, x.shape),)


def _launch_sums_gradient(results: Arguments, grad: Any, x: Any, sums: Any) -> None:
    if 0 in x.shape:
        return
    grad_x, acc = results[0], rows.accumulator(arrays.dtype_of(x))
    if len(x.shape) == 3:
        kernels.sums_backward(grad, x, sums, grad_x, acc=acc)
    else:
        kernels.row_sums_backward(grad, x, sums, grad_x, acc=acc)


SUMS_BACKWARD = Step(
    "logsumexp_backward",
    "(Tensor grad, Tensor x, Tensor sums) -> Tensor",
    _sums_gradient_results,
    _launch_sums_gradient,
)

SUMS = Step(
    "logsumexp",
    "(Tensor x) -> Tensor",
    _sums_results,
    _launch_sums,
    Gradient(
        SUMS_BACKWARD,
        lambda given, results: (given[0], results[0]),
        lambda kept, grads, _needed: (grads[0], *kept),
        lambda _kept: (0,),
    ),
)
