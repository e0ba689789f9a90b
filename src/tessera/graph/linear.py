"""NumPy's functions of matrices and vectors on traced arrays that others make up."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as _numpy

from tessera.errors import TypeMismatchError, caller_location
from tessera.graph.dimensions import numbers
from tessera.graph.functions import (
    numpy,
    own_axes,
    own_axis,
    refused,
    several,
    trace_of,
    written,
)
from tessera.graph.traced import Array
from tessera.ir.graph.types import ONE, array_type, dims_of

np: Any = _numpy  # whose functions take traced arrays, too


def _below(x: Array, k: int) -> Array:
    """Return where a matrix is on or below one of its diagonals."""
    return numbers(x, x.ndim - 1) <= numbers(x, x.ndim - 2) + k


def _matrices(m: Any) -> Any:
    """Return matrices: of a vector one that has it as each row."""
    x = trace_of(m).array(m)
    if not x.ndim:
        raise _wrong_rank(x, "a vector, a matrix or several")
    return np.broadcast_to(x, (x.shape[0], x.shape[0])) if x.ndim == 1 else x


def _wrong_rank(x: Any, wanted: str) -> TypeMismatchError:
    return TypeMismatchError(
        f"{x!r} is not {wanted}", code="rank-mismatch", location=caller_location(), help="reshape it"
    )


@numpy(np.tril)
def tril(m: Any, k: int = 0) -> Any:
    """Return the elements on and below a diagonal of matrices, zeros above."""
    m = _matrices(m)
    return np.where(_below(m, index(k)), m, np.zeros_like(m))


@numpy(np.triu)
def triu(m: Any, k: int = 0) -> Any:
    """Return the elements on and above a diagonal of matrices, zeros below."""
    m = _matrices(m)
    return np.where(_below(m, index(k) - 1), np.zeros_like(m), m)


@numpy(np.diagonal)
def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """Return the diagonal of matrices along two dimensions, as the last one."""
    x = np.moveaxis(a, (axis1, axis2), (-2, -1))
    rows, columns = (index(size) for size in x.shape[-2:])
    first = (max(-offset, 0), max(offset, 0))
    count = max(min(rows - first[0], columns - first[1]), 0)
    flat = np.reshape(x, (*x.shape[:-2], rows * columns))
    return np.take(flat, first[0] * columns + first[1] + np.arange(count) * (columns + 1), -1)


@numpy(np.diag)
def diag(v: Any, k: int = 0) -> Any:
    """Return the diagonal of a matrix, or a matrix with a vector as its diagonal."""
    if v.ndim == 2:
        return diagonal(v, k)
    if v.ndim != 1:
        raise _wrong_rank(v, "a vector or a matrix")
    size = index(v.shape[0])
    wide = np.pad(v, ((max(k, 0), max(-k, 0)),))
    found = np.where(numbers(np.expand_dims(wide, 0), 1) == numbers(np.expand_dims(wide, 1), 0) + k, wide, 0)
    return found.astype(v.dtype) if size else found


@numpy(np.trace)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    """Return the sums of diagonals."""
    return np.sum(diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


@numpy(np.tensordot)
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return the products of two arrays, summed over pairs of dimensions."""
    space = trace_of(a, b)
    a, b = space.array(a), space.array(b)
    given = ([*range(a.ndim - axes, a.ndim)], [*range(axes)]) if isinstance(axes, int) else axes
    left, right = ([own_axis(x.ndim, at) for at in several(each)] for x, each in zip((a, b), given, strict=True))
    rows, columns = ([at for at in range(x.ndim) if at not in each] for x, each in ((a, left), (b, right)))
    first = np.transpose(a, [*rows, *left])
    second = np.transpose(b, [*right, *columns])
    shape = (*first.shape[: len(rows)], *second.shape[len(right) :])
    inner = _product_of(first.shape[len(rows) :])
    found = np.matmul(
        np.reshape(first, (_product_of(first.shape[: len(rows)]), inner)),
        np.reshape(second, (inner, _product_of(second.shape[len(right) :]))),
    )
    return np.reshape(found, shape)


@numpy(np.einsum)
def einsum(*operands: Any, optimize: Any = False) -> Any:
    """Return sums of products by Einstein's convention."""
    trace = trace_of(operands)
    subscripts, given = _subscripts(operands)
    arrays = [trace.array(one) for one in given]
    names, wanted = _named(subscripts.replace(" ", ""), [x.ndim for x in arrays])
    for at, name in enumerate(names):
        arrays[at], names[at] = _diagonals(arrays[at], name)
    arrays, names = _without_ones(arrays, names, wanted)
    while len(arrays) > 1:
        later = {*wanted, *"".join(names[2:])}
        arrays[:2], names[:2] = _contracted(arrays[:2], names[:2], later)
    ((x,), (own,)) = arrays, names
    gone = tuple(at for at, one in enumerate(own) if one not in wanted)
    x = np.sum(x, axis=gone, dtype=x.dtype) if gone else x
    own = [one for one in own if one in wanted]
    return np.transpose(x, [own.index(one) for one in wanted])


def _subscripts(operands: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return the text and the arrays of a call, which may give numbers of dimensions after each array."""
    if isinstance(operands[0], str):
        return operands[0], operands[1:]
    pairs = len(operands) // 2
    texts = ["".join("..." if one is ... else chr(ord("a") + one) for one in each) for each in operands[1::2]]
    if len(operands) % 2:
        result = "".join("..." if one is ... else chr(ord("a") + one) for one in operands[-1])
        return f"{','.join(texts)}->{result}", operands[: 2 * pairs : 2]
    return ",".join(texts), operands[::2]


def _named(subscripts: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return a letter for each dimension of the operands and of the result: those of `...` have letters of their own.

    Raises:
        TypeMismatchError: `bad-argument`.
    """
    given, arrow, result = subscripts.partition("->")
    names, most = given.split(","), ""
    if len(names) != len(ranks):
        raise _bad_subscripts(subscripts, f"{len(ranks)} arrays")
    for at, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        hidden = rank - len(name.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in name):
            raise _bad_subscripts(subscripts, f"an array of rank {rank} for {name!r}")
        letters = "".join(chr(_HIDDEN + place) for place in reversed(range(hidden)))
        names[at] = name.replace("...", letters)
        most = max(most, letters, key=len)
    letters = "".join(names)
    if not arrow:
        single = sorted(one for one in {*letters} - {*most} if letters.count(one) == 1)
        return names, most + "".join(single)
    wanted = result.replace("...", most)
    if len({*wanted}) < len(wanted) or {*wanted} - {*letters} or {*most} - {*wanted}:
        raise _bad_subscripts(subscripts, f"the result {result!r}")
    return names, wanted


_HIDDEN = 0xE000
"""The first letter of those that nobody writes."""


def _bad_subscripts(subscripts: str, what: str) -> TypeMismatchError:
    return TypeMismatchError(
        f"einsum({subscripts!r}) does not fit {what}",
        code="bad-argument",
        location=caller_location(),
        help="a letter for each dimension, or ... for those in front; the result has each letter once",
    )


def _diagonals(x: Any, name: str) -> tuple[Any, str]:
    """Return an array with each letter once: of equal ones the diagonal."""
    while len({*name}) < len(name):
        letter = next(one for one in name if name.count(one) > 1)
        first, second = name.index(letter), name.rindex(letter)
        x = diagonal(x, 0, first, second)
        name = name[:first] + name[first + 1 : second] + name[second + 1 :] + letter
    return x, name


def _without_ones(arrays: Sequence[Any], names: Sequence[str], wanted: str) -> tuple[list[Any], list[str]]:
    """Return operands without dimensions of one element that others have more of, along which they are repeated."""
    wide = {one for x, name in zip(arrays, names, strict=True) for one, dim in _sized(x, name) if dim != ONE}
    found: list[Any] = []
    left: list[str] = []
    for x, name in zip(arrays, names, strict=True):
        gone = tuple(at for at, (one, dim) in enumerate(_sized(x, name)) if dim == ONE and one in wide)
        found.append(np.squeeze(x, gone) if gone else x)
        left.append("".join(one for at, one in enumerate(name) if at not in gone))
    return found, left


def _sized(x: Any, name: str) -> list[tuple[str, Any]]:
    return list(zip(name, dims_of(x.ssa), strict=True))


def _contracted(arrays: Sequence[Any], names: Sequence[str], later: set[str]) -> tuple[list[Any], list[str]]:
    """Return the product of two arrays, summed over the dimensions that nothing needs later, and its dimensions."""
    one, other = names
    both = [letter for letter in one if letter in other]
    kept, summed = ([letter for letter in both if (letter in later) is needed] for needed in (True, False))
    rest = [[letter for letter in each if letter not in both] for each in names]
    first, second = (
        np.transpose(x, [each.index(letter) for letter in order])
        for x, each, order in zip(arrays, names, ([*kept, *rest[0], *summed], [*kept, *summed, *rest[1]]), strict=True)
    )
    letters = "".join([*kept, *rest[0], *rest[1]])
    if not summed:
        wide = np.expand_dims(first, tuple(range(len(kept) + len(rest[0]), len(letters))))
        thin = np.expand_dims(second, tuple(range(len(kept), len(kept) + len(rest[0]))))
        return [wide * thin], [letters]
    batch = first.shape[: len(kept)]
    left = first.shape[len(kept) : first.ndim - len(summed)]
    right = second.shape[len(kept) + len(summed) :]
    inner = _product_of(first.shape[first.ndim - len(summed) :])
    found = np.matmul(
        np.reshape(first, (*batch, _product_of(left), inner)), np.reshape(second, (*batch, inner, _product_of(right)))
    )
    return [np.reshape(found, (*batch, *left, *right))], [letters]


@numpy(np.kron)
def kron(a: Any, b: Any) -> Any:
    """Return the products of all elements of two arrays, a block of the second for each of the first."""
    trace = trace_of(a, b)
    first, second = trace.array(a), trace.array(b)
    rank = max(first.ndim, second.ndim)
    first, second = (np.expand_dims(x, tuple(range(rank - x.ndim))) for x in (first, second))
    wide = np.expand_dims(first, tuple(range(1, 2 * rank, 2))) * np.expand_dims(second, tuple(range(0, 2 * rank, 2)))
    return np.reshape(wide, tuple(one * other for one, other in zip(first.shape, second.shape, strict=True)))


def _product_of(sizes: Sequence[Any]) -> Any:
    total: Any = 1
    for size in sizes:
        total = size * total
    return total


@numpy(np.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    """Return sums of products along the last dimension of one array and the last but one of the other."""
    trace = trace_of(a, b)
    first, second = trace.array(a), trace.array(b)
    if first.ndim == 0 or second.ndim == 0:
        return first * second
    if second.ndim == 1 or (first.ndim <= 2 and second.ndim == 2):
        return np.matmul(first, second)
    return tensordot(first, second, ((-1,), (-2,)))


@numpy(np.inner)
def inner(a: Any, b: Any) -> Any:
    """Return the sums of products along the last dimensions."""
    trace = trace_of(a, b)
    first, second = trace.array(a), trace.array(b)
    if first.ndim == 0 or second.ndim == 0:
        return first * second
    return tensordot(first, second, ((-1,), (-1,)))


@numpy(np.vdot)
def vdot(a: Any, b: Any) -> Any:
    """Return the sum of the products of all elements."""
    trace = trace_of(a, b)
    first, second = np.ravel(trace.array(a)), np.ravel(trace.array(b))
    return np.matmul(first, second)


def _vectors_product(x1: Any, x2: Any, axis: int = -1) -> Any:
    trace = trace_of(x1, x2)
    first, second = (np.moveaxis(trace.array(x), axis, -1) for x in (x1, x2))
    return np.matmul(np.expand_dims(first, -2), np.expand_dims(second, -1))[..., 0, 0]


def _matrices_by_vectors(x1: Any, x2: Any) -> Any:
    return np.matmul(x1, np.expand_dims(x2, -1))[..., 0]


def _vectors_by_matrices(x1: Any, x2: Any) -> Any:
    return np.matmul(np.expand_dims(x1, -2), x2)[..., 0, :]


if hasattr(np, "vecdot"):
    written(np.vecdot)(_vectors_product)
    numpy(np.linalg.vecdot)(_vectors_product)
if hasattr(np, "matvec"):
    written(np.matvec)(_matrices_by_vectors)
    written(np.vecmat)(_vectors_by_matrices)


@numpy(np.linalg.multi_dot)
def multi_dot(arrays: Sequence[Any], *, out: Any = None) -> Any:
    """Return the product of several matrices, from the first on."""
    found = arrays[0]
    for one in arrays[1:]:
        found = np.matmul(found, one)
    return found


@numpy(np.linalg.matrix_power)
def matrix_power(a: Any, n: int) -> Any:
    """Return the product of so many equal matrices."""
    if index(n) < 0:
        raise refused("linalg.matrix_power of a negative number")
    if n == 0:
        own = numbers(a, a.ndim - 1) == numbers(a, a.ndim - 2)
        return np.broadcast_to(own, a.shape).astype(a.dtype)
    if n == 1:
        return np.copy(a)
    half = matrix_power(a, n // 2)
    square = np.matmul(half, half)
    return np.matmul(square, a) if n % 2 else square


def _last_transposed(x: Any, /) -> Any:
    return np.swapaxes(x, -1, -2)


for _module in (np, np.linalg):
    if hasattr(_module, "matrix_transpose"):
        numpy(_module.matrix_transpose)(_last_transposed)


@numpy(np.cross)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """Return the vector products of vectors of three elements along a dimension."""
    trace = trace_of(a, b)
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis, axis, axis)
    first, second = (np.moveaxis(trace.array(x), at, -1) for x, at in ((a, axisa), (b, axisb)))
    if index(first.shape[-1]) != 3 or index(second.shape[-1]) != 3:
        raise refused("cross of vectors of two elements")
    found = [
        first[..., one] * second[..., other] - first[..., other] * second[..., one]
        for one, other in ((1, 2), (2, 0), (0, 1))
    ]
    return np.moveaxis(np.stack(found, -1), -1, axisc)


@numpy(np.vander)
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """Return powers of the elements of a vector as columns, the largest first."""
    if x.ndim != 1:
        raise _wrong_rank(x, "a vector")
    count = index(x.shape[0] if N is None else N)
    columns = [np.ones_like(x)]
    while len(columns) < count:
        columns.append(columns[-1] * x)
    if not count:
        return np.zeros_like(x, shape=(x.shape[0], 0))
    return np.stack(columns if increasing else columns[::-1], 1)


@numpy(np.polyval)
def polyval(p: Any, x: Any) -> Any:
    """Return the values of a polynomial, given by its coefficients from the highest power on."""
    trace = trace_of(p, x)
    factors, at = trace.array(p), trace.array(x)
    found: Any = np.zeros_like(at)
    for number in range(index(factors.shape[0])):
        found = found * at + factors[number]
    return found


@numpy(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: Any = False) -> Any:
    """Return the norm of vectors, or of matrices other than those by singular values."""
    x = x if array_type(x.ssa).dtype.is_float else x.astype(np.float64)
    axes = own_axes(x, axis) if axis is None or isinstance(axis, int) else [own_axis(x.ndim, one) for one in axis]
    if ord is None or (len(axes) == 1 and ord == 2) or (len(axes) == 2 and ord == "fro"):
        return np.sqrt(np.sum(x * x, axis=tuple(axes), keepdims=keepdims))
    if len(axes) == 1:
        return _vector_norm(x, ord, axes[0], keepdims)
    if len(axes) != 2 or ord not in (1, -1, np.inf, -np.inf):
        raise refused(f"linalg.norm(ord={ord!r}) of arrays of rank {len(axes)}")
    rows, columns = axes if abs(ord) == 1 else axes[::-1]
    total = np.sum(np.absolute(x), axis=rows, keepdims=True)
    found = (np.max if ord > 0 else np.min)(total, axis=columns, keepdims=True)
    return found if keepdims else np.squeeze(found, (rows, columns))


def _vector_norm(x: Any, ord: Any, axis: int, keepdims: Any) -> Any:
    size = np.absolute(x)
    if ord in (np.inf, -np.inf):
        return (np.max if ord > 0 else np.min)(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return np.sum((x != 0).astype(x.dtype), axis=axis, keepdims=keepdims)
    total = np.sum(size if ord == 1 else size**ord, axis=axis, keepdims=keepdims)
    return total if ord == 1 else total ** (1 / ord)
