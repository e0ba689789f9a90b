"""Dimensions that an op goes along: arrays as rows `(A, N)`, or as `(A, N, B)` with the dimension in the middle."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from operator import index
from typing import Any

from tessera.errors import CallError, caller_location
from tessera.numerics.dtypes import DType
from tessera.ops import arrays, rows


def chosen(dim: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Return dimensions from the first on, all of them for None and (); an array of none has one, as in PyTorch.

    Raises:
        CallError: `bad-axis` for one that is not there or given twice.
    """
    if dim is None or (isinstance(dim, Sequence) and not len(dim)):
        return tuple(range(ndim))
    given = [index(one) for one in (dim if isinstance(dim, Sequence) else (dim,))]
    found = sorted(one + max(ndim, 1) if one < 0 else one for one in given)
    if any(not 0 <= one < max(ndim, 1) for one in found) or len(set(found)) < len(found):
        raise CallError(
            f"dim is {dim!r} of an array of {ndim} dimensions",
            code="bad-axis",
            location=caller_location(),
            help="give dimensions that it has, each once; -1 is the last",
        )
    return tuple(found) if ndim else ()


def extents(shape: Sequence[Any], dims: Sequence[int]) -> tuple[Any, Any, Any]:
    """Return A, N and B of an array that goes along some of its dimensions."""
    if not is_together(shape, dims):
        return prod([size for at, size in enumerate(shape) if at not in dims]), prod([shape[at] for at in dims]), 1
    first, last = (dims[0], dims[-1] + 1) if dims else (len(shape), len(shape))
    return prod(shape[:first]), prod(shape[first:last]), prod(shape[last:])


def is_together(shape: Sequence[Any], dims: Sequence[int]) -> bool:
    """Return whether dimensions are one, with none between them that has more than one element."""
    return not dims or all(at in dims or shape[at] == 1 for at in range(dims[0], dims[-1]))


def folded(array: Any, dims: Sequence[int]) -> Any:
    """Return an array as `(A, N)`, or as `(A, N, B)` where something lies behind the dimensions.

    It is copied where no strides give it; dimensions that lie apart go to the end first.
    """
    shape = tuple(array.shape)
    ahead, along, behind = extents(shape, dims)
    if not is_together(shape, dims):
        order = (*(at for at in range(len(shape)) if at not in dims), *dims)
        array = array.permute(order) if arrays.is_torch(array) else array.transpose(order)
    wanted = (ahead, along) if behind == 1 else (ahead, along, behind)
    return array if tuple(array.shape) == wanted else array.reshape(wanted)


def unfolded(array: Any, shape: Sequence[Any], dims: Sequence[int]) -> Any:
    """Return what `folded` made as it was; of the folded shape or a new array of the same."""
    if is_together(shape, dims):
        return array if tuple(array.shape) == tuple(shape) else array.reshape(tuple(shape))
    order = (*(at for at in range(len(shape)) if at not in dims), *dims)
    back = tuple(order.index(at) for at in range(len(shape)))
    array = array.reshape(tuple(shape[at] for at in order))
    return array.permute(back) if arrays.is_torch(array) else array.transpose(back)


def left(shape: Sequence[Any], dims: Sequence[int], keepdim: bool) -> tuple[Any, ...]:
    """Return the shape of what is left after a reduction."""
    if keepdim:
        return tuple(1 if at in dims else size for at, size in enumerate(shape))
    return tuple(size for at, size in enumerate(shape) if at not in dims)


def place(out: Any, cuts: Sequence[int]) -> Any:
    """Return an array for a result with its dimensions up to each cut as one; None where no strides give that."""
    found = arrays.view(out, "out")
    ends = [0, *cuts, len(found.shape)]
    groups = [slice(a, b) for a, b in pairwise(ends)]
    wanted = tuple(prod(found.shape[group]) for group in groups)
    if found.shape == wanted:
        return out
    if not all(rows.is_one(found.shape[group], found.strides[group]) for group in groups):
        return None
    return out.reshape(wanted)


def place_along(out: Any, dims: Sequence[int], wanted: Sequence[int]) -> Any:
    """Return an array for a result as `folded` has its input; None where no strides give that."""
    if not dims:
        return None
    goal = place(out, (dims[0],) if len(wanted) == 2 else (dims[0], dims[0] + 1))
    return goal if goal is not None and tuple(goal.shape) == tuple(wanted) else None


def place_left(out: Any, shape: Sequence[Any], dims: Sequence[int], wanted: Sequence[int]) -> Any:
    """Return an array for what is left after a reduction as kernels write it; None where no strides give that."""
    if not is_together(shape, dims):
        return None
    goal = place(out, () if len(wanted) == 1 else (dims[0],))
    return goal if goal is not None and tuple(goal.shape) == tuple(wanted) else None


def dtype_asked(dtype: object, otherwise: DType) -> DType:
    """Return the dtype that a call asks for: one of Tessera's or of PyTorch's, or None.

    Raises:
        CallError: `wrong-dtype` for what is no dtype of floating point numbers.
    """
    if dtype is None:
        return otherwise
    torch: Any = sys.modules.get("torch")
    found = arrays.by_torch_name(str(dtype)) if torch is not None and isinstance(dtype, torch.dtype) else dtype
    if not isinstance(found, DType) or found.name not in rows.FLOATS:
        raise CallError(
            f"dtype is {dtype!r}",
            code="wrong-dtype",
            location=caller_location(),
            help=f"it takes {', '.join(rows.FLOATS)}",
        )
    return found
