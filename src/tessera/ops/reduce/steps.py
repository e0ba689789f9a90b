"""The steps behind reductions: results, parts, kernels, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from tessera.numerics.dtypes import BY_NAME, DType, f32, f64, i32, i64
from tessera.ops import arrays, rows
from tessera.ops.reduce import kernels
from tessera.ops.steps import Arguments, Gradient, Step, like, missing, present

BLOCK = 2048
"""Elements that a program takes at once."""
_WIDEST = 128
_HALF, _ALONG_ON_CPUS = 512, 64
_LEAST_STEPS = 4
"""Blocks of a part at least: fewer, and its own result costs more than what it adds up."""
_PROGRAMS_A_UNIT = 2
_MOST_STEPS_ON_CPUS = 32
"""Blocks that a CPU adds up one after the other; the error of a sum grows with their number."""
_MOST_PLACES = 2**31 - 2**20
"""Elements of a row whose places, and those of a block behind it, are i32."""

SUMS = {
    "sum": ("sum", ""),
    "mean": ("sum", "quotient"),
    "norm1": ("abs", ""),
    "norm2": ("square", "root"),
    "norm0": ("present", ""),
    "norm of power": ("power", "power"),
    "var": ("apart", "quotient"),
    "equal": ("equal", ""),
    "equal size": ("equal size", ""),
}
"""What elements add to sums of a kind, and what sums become."""
SLOPES = {
    "sum": "sum",
    "mean": "sum",
    "norm0": "sum",
    "norm1": "abs",
    "norm2": "root",
    "norm of power": "power",
    "var": "apart",
}
LAST: dict[str, Any] = {}
"""The kernel that ran last, by the kind of reduction."""


def _power_above(count: int, most: int) -> int:
    return min(most, 1 << max(count - 1, 0).bit_length())


def blocks(shape: Sequence[int], most: int = BLOCK) -> dict[str, int]:
    """Return the blocks of a kernel for rows `(A, N)`, or for `(A, N, B)`, of so many elements at most."""
    if len(shape) == 2:
        along = _power_above(shape[1], most)
        return {"BA": _power_above(shape[0], most // along), "BN": along}
    across = _power_above(shape[2], _WIDEST)
    return {"BN": _power_above(shape[1], most // across), "BB": across}


def sum_blocks(shape: Sequence[int], simt: bool) -> dict[str, int]:
    """Return the blocks of what adds up rows `(A, N)`, or `(A, N, B)`.

    A GPU takes rows of 513 to 1024 elements in two steps: more of them are in flight (0.95 of a copy's rate, for 0.77,
    on an H200). A CPU keeps the sums of a block in its registers (8192 rows of 1024 in f32: 1.1 ms for 1.9).
    """
    found = blocks(shape)
    if len(shape) == 2 and not simt:
        along = min(_ALONG_ON_CPUS, _power_above(shape[1], BLOCK))
        return {"BA": _power_above(shape[0], 4 * _ALONG_ON_CPUS // along), "BN": along}
    if len(shape) == 2 and _HALF < found["BN"] <= 2 * _HALF:
        return {"BA": 2 * found["BA"], "BN": _HALF}
    return found


def _own_blocks(x: Any) -> dict[str, int]:
    return sum_blocks(tuple(map(int, x.shape)), rows.is_simt(x))


def _parts(x: Any, longest: int | None = None) -> tuple[int, int]:
    """Return in how many parts a dimension is reduced, and the elements of one; it depends on sizes and machine.

    Args:
        x: the array.
        longest: the most blocks of a part, None for any number. Rows of several programs stay whole: each program
            reads memory from end to end.
    """
    shape, block = tuple(map(int, x.shape)), _own_blocks(x)
    across = -(-shape[0] // block["BA"]) if len(shape) == 2 else shape[0] * -(-shape[2] // block["BB"])
    steps = max(1, -(-shape[1] // block["BN"]))
    most = rows.most_programs(x, _PROGRAMS_A_UNIT)
    each = -(-steps // max(1, min(most // across, steps // _LEAST_STEPS)))
    if longest is not None and (across == 1 or len(shape) == 3):
        each = min(each, longest)
    return -(-steps // each), each * block["BN"]


def accumulator(given: DType, wanted: DType) -> DType:
    """Return the dtype that is computed in: f64 where one is, i64 for integers, else f32."""
    if "f64" in (given.name, wanted.name):
        return f64
    return f32 if given.is_float or wanted.is_float else i64


def _kept(x: Any) -> tuple[Any, ...]:
    """Return the shape of what is left."""
    return x.shape[0], *x.shape[2:]


def _results(x: Any, kind: str, less: Any, dtype: str) -> Arguments:
    acc = accumulator(arrays.dtype_of(x), BY_NAME[dtype])
    return like(x, _kept(x), BY_NAME[dtype]), like(x, _kept(x), acc) if kind == "var" else missing(x)


def _divisor(count: Any, less: float) -> float:
    """Return what sums of so many elements are divided by."""
    return max(float(count) - less, 0.0)


def _launch(results: Arguments, x: Any, kind: str, less: float, dtype: str) -> None:
    y, middle = results[0], present(results[1])
    if 0 in y.shape:
        return
    acc = accumulator(arrays.dtype_of(x), BY_NAME[dtype])
    if middle is not None:
        _sums(x, None, middle, "mean", float(x.shape[1]), acc)
    _sums(x, middle, y, kind, less if kind == "norm of power" else _divisor(x.shape[1], less), acc)


def _sums(x: Any, middle: Any, y: Any, kind: str, divisor: float, acc: DType) -> None:
    """Run the kernels of a sum: in parts, then over these."""
    of, finish = SUMS[kind]
    is_exact = rows.is_simt(x) or acc == i64
    parts, each = _parts(x, None if is_exact else _MOST_STEPS_ON_CPUS)
    kernel, block = kernels.row_sums if len(x.shape) == 2 else kernels.column_sums, _own_blocks(x)
    if len(x.shape) == 2 and not is_exact and each > (span := _MOST_STEPS_ON_CPUS * block["BN"]):
        kernel, block = kernels.long_row_sums, block | {"span": span}
    LAST[kind] = kernel
    if parts == 1:
        kernel(x, middle, y[None], each, divisor, kind=of, finish=finish, acc=acc, **block)
        return
    partial = like(x, (parts, *y.shape), acc)
    kernel(x, middle, partial, each, divisor, kind=of, finish="", acc=acc, **block)
    flat, goal = _over_parts(partial), y.reshape(1, 1, -1)
    block = _own_blocks(flat)
    each = -(-parts // block["BN"]) * block["BN"]
    kernels.column_sums(flat, None, goal, each, divisor, kind="sum", finish=finish, acc=acc, **block)
    _settle(y, goal)


def _over_parts(partial: Any) -> Any:
    """Return results of parts with the parts as the dimension in the middle."""
    return partial.reshape(1, partial.shape[0], -1)


def _settle(goal: Any, found: Any) -> None:
    """Write results where reshaping a goal has copied it."""
    if arrays.start(goal, "out") != arrays.start(found, "out"):
        goal[...] = found.reshape(goal.shape)


def _gradient_results(
    grad: Any, x: Any, kept: Any, shape: Sequence[Any], dtype: str, kind: str, less: Any
) -> Arguments:
    return (like(grad, shape, BY_NAME[dtype]),)


def _launch_gradient(
    results: Arguments, grad: Any, x: Any, kept: Any, shape: Sequence[int], dtype: str, kind: str, less: float
) -> None:
    (grad_x,) = results
    if 0 in grad_x.shape:
        return
    acc = accumulator(BY_NAME[dtype], arrays.dtype_of(grad))
    kernel = kernels.row_slopes if len(grad_x.shape) == 2 else kernels.column_slopes
    block = blocks(tuple(map(int, grad_x.shape)))
    shares = None
    if kind.startswith("equal"):
        shares = like(kept, kept.shape, acc)
        _sums(x, kept, shares, kind, 1.0, acc)
    kernel(
        grad,
        x,
        kept,
        shares,
        grad_x,
        _factor(kind, float(grad_x.shape[1]), less),
        kind=SLOPES.get(kind, kind),
        acc=acc,
        **block,
    )


def _factor(kind: str, count: float, less: float) -> float:
    """Return what gradients of so many elements are multiplied by, or the exponent of a norm."""
    if kind in ("norm0", "norm of power"):
        return less
    times, divisor = {"mean": 1.0, "var": 2.0}.get(kind), count - less
    return 1.0 if times is None else times / divisor if divisor else inf


BACKWARD = Step(
    "reduce_backward",
    "(Tensor grad, Tensor? x, Tensor? kept, SymInt[] shape, str dtype, str kind, float less) -> Tensor",
    _gradient_results,
    _launch_gradient,
)


def sums_kept(given: Arguments, results: Arguments) -> Arguments:
    """Return what the gradient of a sum needs: elements only where it depends on them."""
    x, kind, less, _dtype = given
    kept = {"norm2": results[0], "norm of power": results[0], "var": results[1]}.get(kind)
    needs = kind in ("norm1", "norm2", "norm of power", "var")
    return x if needs else None, kept, tuple(x.shape), arrays.dtype_of(x).name, kind, less


def _gradient_arguments(kept: Arguments, grads: Sequence[Any], _needed: Sequence[bool]) -> Arguments:
    return grads[0], *kept


def _repeated(kept: Arguments, grads: Sequence[Any]) -> Arguments | None:
    """Return the gradient of a sum or mean: that of the result, repeated without a copy."""
    _x, _kept, shape, dtype, kind, _less = kept
    if kind not in ("sum", "mean"):
        return None
    grad = grads[0] / shape[1] if kind == "mean" else grads[0]
    return (grad.to(arrays.torch_dtypes()[dtype]).unsqueeze(1).expand(shape),)


REDUCE = Step(
    "reduce_sums",
    "(Tensor x, str kind, float less, str dtype) -> (Tensor, Tensor)",
    _results,
    _launch,
    Gradient(BACKWARD, sums_kept, _gradient_arguments, lambda _kept: (0, None, None, None), _repeated),
)


def last_of(dtype: DType, kind: str) -> Any:
    """Return what no element of a dtype is behind."""
    if dtype.is_float:
        return 0.0 if kind == "size" else float("inf") if kind == "min" else -float("inf")
    least = -(2 ** (dtype.bits - 1)) if dtype.kind == "int" else 0
    return least + 2**dtype.bits - 1 if kind == "min" else least


def places_of(size: int) -> DType:
    """Return the dtype in which places along a dimension are found."""
    return i32 if size <= _MOST_PLACES else i64


def _extreme_results(x: Any, kind: str, shared: bool) -> Arguments:
    return like(x, _kept(x)), like(x, _kept(x), i64)


def _launch_extremes(results: Arguments, x: Any, kind: str, shared: bool) -> None:
    values, places = results
    if 0 in values.shape:
        return
    dtype = arrays.dtype_of(x)
    acc = accumulator(dtype, dtype)
    parts, each = _parts(x)
    block = _own_blocks(x)
    at = places_of(x.shape[1])
    options: dict[str, Any] = {"kind": kind, "last": last_of(dtype, kind), "acc": acc, "at": at}
    is_rows = len(x.shape) == 2
    kernel: Any = kernels.row_extremes if is_rows else kernels.column_extremes
    LAST[kind] = kernel
    given: Arguments = (x,) if is_rows else (x, None)
    if parts == 1:
        kernel(*given, values[None], places[None], each, **options, **block)
        return
    some, where = like(x, (parts, *values.shape)), like(x, (parts, *values.shape), i64)
    kernel(*given, some, where, each, **options, **block)
    over = "max" if kind == "size" else kind
    options |= {"kind": over, "last": last_of(dtype, over)}
    some, where = _over_parts(some), _over_parts(where)
    goals = values.reshape(1, 1, -1), places.reshape(1, 1, -1)
    block = _own_blocks(some)
    kernels.column_extremes(some, where, *goals, -(-parts // block["BN"]) * block["BN"], **options, **block)
    for goal, found in zip(results, goals, strict=True):
        _settle(goal, found)


def extremes_kept(given: Arguments, results: Arguments) -> Arguments:
    """Return what the gradient of an extreme needs: its place, or where equal elements share it these and itself."""
    x, kind, shared = given
    of = "place" if not shared else "equal size" if kind == "size" else "equal"
    return x if shared else None, results[0 if shared else 1], tuple(x.shape), arrays.dtype_of(x).name, of, 0.0


EXTREMES = Step(
    "reduce_extremes",
    "(Tensor x, str kind, bool shared) -> (Tensor, Tensor)",
    _extreme_results,
    _launch_extremes,
    Gradient(BACKWARD, extremes_kept, _gradient_arguments, lambda _kept: (0, None, None)),
)
