"""Products of vectors, of batches that broadcast, and of rows in any dimensions: by `gemm` and `gemm_batched`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType
from tessera.ops import arrays
from tessera.ops import epilogue as epi
from tessera.ops.linalg.gemm import gemm, gemm_batched
from tessera.ops.linalg.prepare import check_apart
from tessera.ops.linalg.problem import check_pair, default_out


def plain(a: Any, b: Any) -> Any:
    """Return a product of two arrays that PyTorch does not see: it is inside of a graph."""
    return gemm.plain(a, b) if len(a.shape) == len(b.shape) == 2 else general(a, b, None, None)


def product_shape(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shape of a product by NumPy's rules; sizes may be symbols of PyTorch's.

    Raises:
        CallError: `wrong-rank` or `wrong-shape`.
    """
    if not a or not b:
        raise CallError(f"a has the shape {a} and b {b}", code="wrong-rank", help="multiply numbers with *")
    terms = a[-1], b[-2 if len(b) > 1 else 0]
    if terms[0] != terms[1]:
        raise CallError(
            f"a is {a} and b is {b}: {terms[0]} != {terms[1]}",
            code="wrong-shape",
            help="a (..., M, K) and b (..., K, N)",
        )
    rows, columns = tuple(a[-2:-1]), tuple(b[-1:] if len(b) > 1 else ())
    try:
        return (*_broadcast(a[:-2], b[:-2]), *rows, *columns)
    except ValueError:
        raise CallError(
            f"the batches of a {a} and b {b} do not broadcast",
            code="wrong-shape",
            help="sizes must be equal or 1, counted from the last dimension",
        ) from None


def _broadcast(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """Return the sizes of batches together.

    Raises:
        ValueError: there are none.
    """
    added = len(b) - len(a)
    pairs = list(zip((*(1,) * added, *a), (*(1,) * -added, *b), strict=True))
    if any(one != other and one != 1 and other != 1 for one, other in pairs):
        raise ValueError
    return tuple(other if one == 1 else one for one, other in pairs)


def general(a: Any, b: Any, out: Any, out_dtype: DType | None) -> Any:
    """Compute a product of vectors, matrices or batches."""
    x, y = arrays.view(a, "a"), arrays.view(b, "b")
    shape = product_shape(x.shape, y.shape)
    check_pair(x.dtype, y.dtype)
    left = a.reshape(1, -1) if len(x.shape) == 1 else a
    right = b.reshape(-1, 1) if len(y.shape) == 1 else b
    batch = _broadcast(left.shape[:-2], right.shape[:-2])
    given = out is not None
    if not given:
        out = arrays.maker(a, shape, out_dtype or default_out(x.dtype))(a)
    elif tuple(out.shape) != shape:
        raise CallError(
            f"argument 'out' has the shape {tuple(out.shape)}, the result is {shape}",
            code="wrong-shape",
            help="make out of that shape, or leave it out",
        )
    target = out[..., None] if len(y.shape) == 1 else out
    target = target[..., None, :] if len(x.shape) == 1 else target
    split = _split(left, right, target, batch)
    if given and prod(batch[:split]) > 1:
        check_apart(out, a=a, b=b)  # each product alone has no element in common with its operands
    _into(left, right, target, batch, split)
    return out


def _split(left: Any, right: Any, out: Any, batch: tuple[int, ...]) -> int:
    """Return how many leading dimensions of a broadcast batch strides do not join with the others."""
    for split in range(len(batch)):
        if all(_joined(operand, batch, split) is not None for operand in (left, right, out)):
            return split
    return len(batch)


def _into(left: Any, right: Any, out: Any, batch: tuple[int, ...], split: int) -> None:
    """Compute every product of a broadcast batch; its first `split` dimensions are looped over."""
    if 0 in out.shape:
        return
    for place in product(*(range(size) for size in batch[:split])):
        x, y = (_one(operand, batch, place) for operand in (left, right))
        target = out[place] if place else out
        _batch(x, y, target, batch[split:])


def _strides(operand: Any, batch: tuple[int, ...]) -> list[int]:
    """Return the strides of an operand's batch dimensions once it is broadcast: 0 where it repeats."""
    view = arrays.view(operand, "an operand")
    own = len(view.shape) - 2
    missing = [0] * (len(batch) - own)
    return missing + [0 if view.shape[i] == 1 else view.strides[i] for i in range(own)]


def _joined(operand: Any, batch: tuple[int, ...], split: int) -> tuple[int, int] | None:
    """Return size and stride of batch dimensions from `split` on as a single one, None where they are not one."""
    size, step = 1, 0
    for extent, stride in reversed(list(zip(batch[split:], _strides(operand, batch)[split:], strict=True))):
        if extent == 1:
            continue
        if size > 1 and stride != step * size:
            return None
        size, step = size * extent, stride if size == 1 else step
    return size, step


def _one(operand: Any, batch: tuple[int, ...], place: tuple[int, ...]) -> Any:
    """Return an operand at one place of the leading batch dimensions."""
    own = operand.ndim - 2
    skipped = len(batch) - own
    for axis, index in enumerate(place):
        if axis >= skipped:
            operand = operand[0 if operand.shape[0] == 1 else index]
    return operand


def _batch(left: Any, right: Any, out: Any, batch: tuple[int, ...]) -> None:
    """Compute a batch whose dimensions each operand joins to one."""
    count = prod(batch)
    x, y = (_three(operand, batch) for operand in (left, right))
    target = out.reshape(count, *out.shape[-2:])
    if count == 1 or (x.ndim == 2 and y.ndim == 2):
        x, y = (operand if operand.ndim == 2 else operand[0] for operand in (x, y))
        for i in range(count):
            gemm.plain(x, y, target[i])
    elif y.ndim == 2 and _rows_join(x) and _rows_join(target):
        rows = count * x.shape[1]
        gemm.plain(x.reshape(rows, x.shape[2]), y, target.reshape(rows, y.shape[1]))
    else:
        gemm_batched.plain(x, y, target)


def _three(operand: Any, batch: tuple[int, ...]) -> Any:
    """Return an operand as a batch of matrices, or as one matrix where it repeats."""
    joined = _joined(operand, batch, 0)
    assert joined is not None
    if joined[1] == 0 or joined[0] == 1:
        return operand[(0,) * (operand.ndim - 2)] if operand.ndim > 2 else operand
    return operand.reshape(joined[0], *operand.shape[-2:])


def in_one(left: Any, right: Any) -> tuple[Any, Any] | None:
    """Return the operands of products of equal batches as those of one call of `gemm` or `gemm_batched`.

    Returns:
        Matrices, or batches of them; None where strides do not join the batches to one, or where both repeat.
    """
    if len(left.shape) == len(right.shape) == 2:
        return left, right
    batch = tuple(left.shape[:-2])
    if _joined(left, batch, 0) is None or _joined(right, batch, 0) is None:
        return None
    x, y = (_three(operand, batch) for operand in (left, right))
    if x.ndim == y.ndim == 2:
        return (x, y) if prod(batch) == 1 else None
    if y.ndim == 2 and _rows_join(x):
        return x.reshape(x.shape[0] * x.shape[1], x.shape[2]), y
    return x, y


def _rows_join(batch: Any) -> bool:
    """Return whether a batch of matrices is one tall matrix."""
    view = arrays.view(batch, "a")
    return view.strides[0] == view.strides[1] * view.shape[1]


def _is_flat(array: Any) -> bool:
    """Return whether all dimensions but the last join to one."""
    shape = tuple(array.shape[:-1])
    return _joined(array[..., None, :], shape, 0) is not None


def rows_of_any(
    x: Any, w: Any, bias: Any, epilogue: epi.Epilogue | None, out: Any, options: tuple[Any, ...], stream: Any
) -> Any:
    """Compute a layer of rows that lie in other than two dimensions."""
    shape, weights = arrays.view(x, "x").shape, arrays.view(w, "w").shape
    if not shape or len(weights) != 2:
        name, found, wanted = ("w", weights, "(N, K)") if shape else ("x", shape, "(..., K)")
        raise CallError(
            f"argument {name!r} has the shape {found}, which is not {wanted}",
            code="wrong-rank",
            location=caller_location(),
            help="reshape it",
        )
    count, result = prod(shape[:-1]), (*shape[:-1], weights[0])
    if out is not None and arrays.view(out, "out").shape != result:
        raise CallError(
            f"argument 'out' has the shape {tuple(out.shape)}, the result is {result}",
            code="wrong-shape",
            location=caller_location(),
            help="make out of that shape, or leave it out",
        )
    # Rows that no stride joins are copied, and the result is copied back to such an `out`.
    flat = out.reshape(count, weights[0]) if out is not None and _is_flat(out) else None
    rows = x.reshape(count, shape[-1])
    made = gemm.run(rows, w, None, flat, 1.0, 0.0, bias, None, None, epilogue, options, stream)
    if out is None:
        return made.reshape(result)
    if flat is None:
        out[...] = made.reshape(result)
    return out
