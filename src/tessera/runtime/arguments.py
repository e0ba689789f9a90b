"""Checks arrays against what a kernel's signature promises, and binds its dimension names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tessera.data import dataclass
from tessera.errors import CallError
from tessera.numerics.dtypes import DType, dtype_named
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView
from tessera.target.artifact import ArgSpec
from tessera.target.dims import Dim, solve_for_one


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """What a tensor parameter accepts.

    Args:
        name: the parameter's name.
        dtype: element type in memory.
        dims: the size of each dimension.
    """

    name: str
    dtype: DType
    dims: tuple[Dim, ...]

    @classmethod
    def of_spec(cls, spec: ArgSpec) -> ExpectedTensor:
        """Return what an artefact's argument accepts."""
        return cls(spec.name, dtype_named(spec.dtype).storage, tuple(map(Dim.parse, spec.dims)))

    def check(self, view: ArrayView) -> None:
        """Check dtype and rank.

        Raises:
            CallError: `wrong-dtype` or `wrong-rank`.
        """
        if view.dtype != self.dtype.storage:
            raise CallError(
                f"argument {self.name!r} has dtype {view.dtype}, the kernel takes {self.dtype}",
                code="wrong-dtype",
                help=f"convert the array to {self.dtype}, or change the annotation",
            )
        if len(view.shape) != len(self.dims):
            wanted = ", ".join(map(str, self.dims))
            raise CallError(
                f"argument {self.name!r} has {len(view.shape)} dimensions {view.shape}, the kernel takes "
                f"{len(self.dims)} [{wanted}]",
                code="wrong-rank",
                help="reshape the array",
            )


@dataclass(slots=True)
class _Binding:
    value: int
    where: str


def bind_dims(tensors: Sequence[ExpectedTensor], views: Sequence[ArrayView]) -> dict[str, int]:
    """Return the value of every dimension name that the shapes decide.

    Raises:
        CallError: `wrong-shape`, naming both arguments and the dimension in which they disagree.
    """
    bound: dict[str, _Binding] = {}
    pending: list[tuple[Dim, int, str]] = []
    for tensor, view in zip(tensors, views, strict=True):
        for axis, (dim, size) in enumerate(zip(tensor.dims, view.shape, strict=True)):
            where = f"argument {tensor.name!r} has size {size} in dimension {axis}"
            if dim.is_static:
                _check_equal(where, size, dim, dim.scale, "the annotation says")
            elif not _bind(bound, dim, size, where, {}):
                pending.append((dim, size, where))
    _bind_others(bound, pending)
    return {name: binding.value for name, binding in bound.items()}


def _mismatch(message: str) -> CallError:
    return CallError(message, code="wrong-shape", help="every dimension of one name has one size in a call")


def _check_equal(where: str, size: int, dim: Dim, wanted: int, source: str) -> None:
    if size != wanted:
        raise _mismatch(f"{where}, {source} {dim}{'' if str(dim) == str(wanted) else f' = {wanted}'}")


def _bind(bound: dict[str, _Binding], dim: Dim, size: int, where: str, sizes: Mapping[str, int]) -> bool:
    """Bind the one name of a dimension that has no size; returns whether there is one that its size decides."""
    solved = solve_for_one(dim, size, sizes)
    if solved is None:
        return False
    name, value = solved
    if value is None:
        raise _mismatch(f"{where}, {_why_none(dim, size, name, sizes)}")
    known = bound.setdefault(name, _Binding(value, where))
    if known.value != value:
        raise _mismatch(f"{where}, which makes {name} = {value}, but {known.where}, which makes {name} = {known.value}")
    return True


def _why_none(dim: Dim, size: int, name: str, sizes: Mapping[str, int]) -> str:
    """Return why no size of a name makes a dimension what it is."""
    least = dim.value({**sizes, name: 0}) or 0
    factor = (dim.value({**sizes, name: 1}) or 0) - least
    if not least:
        return f"which is not a multiple of {factor} ({dim})"
    given = [f"{other} = {sizes[other]}" for other in dict.fromkeys(dim.names) if other in sizes]
    return f"which {dim} is for no size of {name}{' with ' if given else ''}{', '.join(given)}"


def _bind_others(bound: dict[str, _Binding], pending: list[tuple[Dim, int, str]]) -> None:
    """Solve dimensions with one unknown name until none is left; what stays unknown must at least agree."""
    progress = True
    while progress:
        progress = False
        rest: list[tuple[Dim, int, str]] = []
        for dim, size, where in pending:
            sizes = {name: binding.value for name, binding in bound.items()}
            if set(dim.names) <= sizes.keys():
                _check_known(bound, dim, size, where)
            elif _bind(bound, dim, size, where, sizes):
                progress = True
            else:
                rest.append((dim, size, where))
        pending = rest
    seen: dict[Any, tuple[int, str]] = {}
    for dim, size, where in pending:
        alike = (tuple(sorted(dim.names)), dim.scale) if dim.is_product else str(dim)
        first, origin = seen.setdefault(alike, (size, where))
        if first != size:
            raise _mismatch(f"{where}, but {origin}; both are {dim}")


def _check_known(bound: Mapping[str, _Binding], dim: Dim, size: int, where: str) -> None:
    """Check a dimension whose names all have sizes."""
    wanted = dim.value({name: bound[name].value for name in dim.names})
    origin = "; ".join(dict.fromkeys(f"{n} = {bound[n].value} as {bound[n].where}" for n in dim.names))
    if wanted is None:
        raise _mismatch(f"{where}, but {origin}, so {dim} divides by zero")
    _check_equal(where, size, dim, wanted, f"but {origin}, so it must be")


def common_device(names: Sequence[str], views: Sequence[ArrayView]) -> Device | None:
    """Return the device all arrays are on, None when there is no array.

    Raises:
        CallError: `wrong-device` when they are on several.
    """
    for name, view in zip(names, views, strict=True):
        if view.device != views[0].device:
            raise CallError(
                f"argument {name!r} is on {view.device}, argument {names[0]!r} is on {views[0].device}",
                code="wrong-device",
                help="move all arrays to one device",
            )
    return views[0].device if views else None


def check_writable(name: str, view: ArrayView) -> None:
    """Check that a kernel may store to an array.

    Raises:
        CallError: `read-only`, or `overlapping` when several elements share an address.
    """
    if view.readonly:
        raise CallError(
            f"the kernel stores to argument {name!r}, which is read-only",
            code="read-only",
            help="pass a copy of it",
        )
    if _overlaps_itself(view):
        raise CallError(
            f"the kernel stores to argument {name!r}, whose elements overlap (strides {view.strides})",
            code="overlapping",
            help="pass a copy of the array",
        )


def _overlaps_itself(view: ArrayView) -> bool:
    """Return whether two elements of an array share an address."""
    if 0 in view.shape:
        return False
    reach = 0
    for stride, size in sorted((abs(s), n) for n, s in zip(view.shape, view.strides, strict=True) if n > 1):
        if stride <= reach:
            break
        reach += stride * (size - 1)
    else:
        return False
    array = elements(1 << 40, view)
    moved = (np.moveaxis(array, axis, 0) for axis, size in enumerate(view.shape) if size > 1)
    return any(_share_memory(along[:1], along[1:]) for along in moved)  # elements that differ in an axis


_MOST_STEPS: Any = 1_000_000  # NumPy's types know of none but its two names
"""Steps in which it must be found that two arrays have no element in common: some milliseconds."""


@dataclass(frozen=True, slots=True)
class _Addresses:
    """Where a view's elements lie, as NumPy reads it."""

    pointer: int
    view: ArrayView

    @property
    def __array_interface__(self) -> dict[str, object]:
        step = self.view.dtype.bytes
        return {
            "version": 3,
            "data": (self.pointer, True),
            "typestr": f"|V{step}",
            "shape": self.view.shape,
            "strides": tuple(stride * step for stride in self.view.strides),
        }


def elements(pointer: int, view: ArrayView) -> Any:
    """Return a NumPy array of the addresses of an array on any device, for `check_overlap`. Its memory is not there."""
    return np.empty(view.shape, np.void) if 0 in view.shape else np.asarray(_Addresses(pointer, view))


def _share_memory(first: Any, second: Any) -> bool:
    """Return whether two arrays have an element in common, or that is too hard to tell."""
    try:
        return np.shares_memory(first, second, max_work=_MOST_STEPS)
    except np.exceptions.TooHardError:
        return True


def _pairs(kept: Sequence[bool], written: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield each two of the arrays that are kept of which a kernel stores to one, that one first."""
    for a, b in combinations([place for place, keep in enumerate(kept) if keep], 2):
        if written[a] or written[b]:
            yield (a, b) if written[a] else (b, a)


def check_overlap(names: Sequence[str], arrays: Sequence[Any], written: Sequence[bool]) -> None:
    """Check that arrays of which a kernel stores to one start at one address or have no element in common.

    Args:
        names: the arguments' names.
        arrays: NumPy arrays of any dtype; what is in them does not matter.
        written: whether the kernel stores to each.

    Raises:
        CallError: `overlapping-arguments`, naming both.
    """
    starts = [array.__array_interface__["data"][0] for array in arrays]
    for stored, other in _pairs([array.size > 0 for array in arrays], written):
        apart = abs(starts[stored] - starts[other])
        if apart and _share_memory(arrays[stored], arrays[other]):
            raise CallError(
                f"the kernel stores to argument {names[stored]!r}, which overlaps argument {names[other]!r}: "
                f"they start {apart} bytes apart",
                code="overlapping-arguments",
                help="pass arrays without a common element, or ones that start at the same one",
            )


def check_starts(
    names: Sequence[str], pointers: Sequence[int], views: Sequence[ArrayView], written: Sequence[bool]
) -> None:
    """Check that no two arrays start at one address of which a kernel stores to one; empty ones have no memory.

    Raises:
        CallError: `aliased-arguments`, naming both.
    """
    for stored, other in _pairs([0 not in view.shape for view in views], written):
        if pointers[stored] == pointers[other]:
            raise CallError(
                f"the kernel stores to argument {names[stored]!r}, which starts at the same address as argument "
                f"{names[other]!r}, but was compiled for arrays of their own",
                code="aliased-arguments",
                help="pass a copy of one, or call the kernel itself, which is compiled for such arguments",
            )
