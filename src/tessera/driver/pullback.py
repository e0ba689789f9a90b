"""`ts.pullback`: gradients of a kernel's inputs from cotangents of its outputs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np

from tessera.data import dataclass
from tessera.driver.kernel import Kernel
from tessera.driver.open_kernel import OpenKernel
from tessera.driver.structured import StructuredKernel
from tessera.driver.variants import points, specialize_at, without_sizes
from tessera.errors import CallError, ResourceError, TesseraError, caller_location, shown
from tessera.frontend.adjoint import AdjointKernel, adjoint_kernel
from tessera.frontend.signature import Signature, TensorParam
from tessera.numerics.dtypes import DType
from tessera.runtime.arguments import check_overlap, check_starts, elements
from tessera.runtime.arrays import empty
from tessera.runtime.readers import view_of
from tessera.runtime.views import ArrayView


class _Generated(Kernel[..., Any]):
    """A kernel that no function says.

    Args:
        signature: its parameters, with what builds it in place of a function.
    """

    def __init__(self, signature: Signature) -> None:
        self._begin(signature)

    def __reduce__(self) -> str:
        raise TypeError("an adjoint has no name of its own")


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """An adjoint that calls have asked for.

    Args:
        kernel: how it is launched.
        known: what it is.
    """

    kernel: _Generated
    known: AdjointKernel


class Pullback:
    """The adjoint of a kernel, as a function.

    Args:
        kernel: the kernel.
        wrt: names of the tensors whose gradients are wanted; None for all of floats that it reads.
    """

    def __init__(self, kernel: Any, wrt: Sequence[str] | None) -> None:
        self._kernel = kernel
        self._wrt = None if wrt is None else tuple(wrt)
        self._made: dict[Any, list[_Made]] = {}

    def __call__(self, /, *args: Any, cotangents: Any = (), **kwargs: Any) -> dict[str, Any]:
        """Return the gradients of tensors that the kernel has read.

        Args:
            *args: the arguments of the kernel's call, as the kernel has left them.
            cotangents: for each tensor of floats that the kernel stores to an array of its shape and dtype: one array
                where there is one such tensor, else arrays by name (what is left out counts as zero), or a tuple of
                them in the order of the parameters.
            **kwargs: arguments by name.

        Returns:
            A new array for each tensor, by its name, of its shape and dtype.

        Raises:
            LanguageError: `no-adjoint`, with the line that has none.
            CallError: an argument does not fit; `argument-count` also for a call without `cotangents`.
        """
        try:
            return self._run(args, cotangents, kwargs)
        except TesseraError as error:
            raise error.at(caller_location()) from error.__cause__

    def __repr__(self) -> str:
        return f"<ts.pullback of {self._kernel!r}>"

    def _run(self, args: Sequence[Any], cotangents: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        kernel, stream = self._kernel, {key: kwargs.pop(key) for key in ("stream",) if key in kwargs}
        if isinstance(kernel, StructuredKernel):
            kernel, args, kwargs = cast(Any, kernel).flattened(args, kwargs)
        if isinstance(kernel, OpenKernel):
            names = kernel.parameter_names
            kernel = kernel.of_arguments({**dict(zip(names, args, strict=False)), **kwargs})
        values = kernel.bound(args, kwargs)
        last: ResourceError | None = None
        for point in points(kernel.space):
            try:
                return self._at(kernel, point, values, cotangents, stream)
            except ResourceError as error:  # the next point may need less
                last = error
        assert last is not None, "a space has at least one point"
        raise last

    def _at(
        self, kernel: Any, point: Mapping[str, object], values: Sequence[Any], cotangents: Any, stream: dict[str, Any]
    ) -> dict[str, Any]:
        """Run the adjoint of a kernel at a tuning point."""
        given = tuple(cast("Mapping[str, Any]", cotangents)) if isinstance(cotangents, Mapping) else None
        made = self._found(kernel, point, values, given)
        by_name = _by_name(made.known.outputs, cotangents, kernel.signature.name)
        own = [
            value
            for param, value in zip(kernel.signature.params, values, strict=True)
            if param in kernel.signature.runtime_params
        ]
        arrays = self._arrays(kernel.signature, made.known, own)
        call = [by_name[name] for name in made.known.outputs]
        made.kernel(*own, *call, *arrays, **stream)
        return dict(zip(made.known.inputs, arrays, strict=False))

    def _found(
        self, kernel: Any, point: Mapping[str, object], values: Sequence[Any], given: tuple[str, ...] | None
    ) -> _Made:
        """Return the adjoint for a call, made if need be."""
        pointers, views, spec = kernel.facts_of(values)
        signature: Signature = kernel.signature
        sizes = kernel.sizes_of(views)
        full = specialize_at(signature, spec, point)
        key = kernel, without_sizes(full), given
        entry = self._made.setdefault(key, [])
        made = next((one for one in entry if all(sizes.get(k) == n for k, n in one.known.fixed.items())), None)
        if made is None:
            known = adjoint_kernel(signature, full, self._wrt, given)
            made = _Made(_Generated(known.signature), known)
            entry.append(made)
        _check_apart(signature, made.known.written, pointers, views)
        return made

    def _arrays(self, signature: Signature, known: AdjointKernel, own: Sequence[Any]) -> list[Any]:
        """Return unset arrays for gradients and scratch memory."""
        params = signature.runtime_params
        tensors = [isinstance(param, TensorParam) for param in params]
        shapes = [view_of(one)[1].shape if is_array else None for one, is_array in zip(own, tensors, strict=True)]
        scalars = [None if is_array else one for one, is_array in zip(own, tensors, strict=True)]
        like = next(one for one, is_array in zip(own, tensors, strict=True) if is_array)
        return [
            _unset(own[one.of] if one.role == "gradient" else like, shape, one.dtype)
            for one, shape in zip(known.added, known.shapes(shapes, scalars), strict=True)
            if one.role != "cotangent"
        ]


def _check_apart(
    signature: Signature, stored: Collection[str], pointers: Sequence[int], views: Sequence[ArrayView]
) -> None:
    """Check that what a kernel has stored to is not what it has read by another name.

    Raises:
        CallError: `aliased-arguments`.
    """
    names = [tensor.name for tensor in signature.tensors]
    written = [name in stored for name in names]
    try:
        check_starts(names, pointers, views, written)
        check_overlap(names, list(map(elements, pointers, views)), written)
    except CallError as error:
        raise CallError(
            f"{signature.name} has stored to an array that it was given twice: what it has read there is gone",
            code="aliased-arguments",
            help="pass a copy of what the array held before the call where it was read",
        ) from error


def _by_name(outputs: Sequence[str], cotangents: Any, kernel: str) -> dict[str, Any]:
    if isinstance(cotangents, Mapping):
        return dict(cast("Mapping[str, Any]", cotangents))
    several = isinstance(cotangents, tuple | list)
    given = tuple(cast("Sequence[Any]", cotangents)) if several else (cotangents,)
    if len(given) != len(outputs):
        raise CallError(
            f"{kernel} stores to {', '.join(outputs)}; cotangents given: {len(given)}",
            code="argument-count",
            help="cotangents= one for each, in this order or in a dictionary by name",
        )
    return dict(zip(outputs, given, strict=True))


def _unset(like: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """Return an unset array in the library and on the device of another one."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype.numpy())
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return like.new_empty(shape, dtype=getattr(torch, dtype.numpy().name))
    return empty(shape, dtype, view_of(like)[1].device)


def pullback(kernel: Any, wrt: Sequence[str] | None = None) -> Pullback:
    """Return a function that gives gradients of a kernel's inputs from cotangents of its outputs (reverse mode).

    It is called with the kernel's arguments, as the kernel has left them, and with what comes back to what it has
    stored. The kernel that computes it is derived from the kernel's own, and gives the same bits in every run.

        gemm(a, b, c)
        gradients = ts.pullback(gemm)(a, b, c, cotangents=dc)
        da, db = gradients["A"], gradients["B"]

    Args:
        kernel: what `@ts.kernel` made.
        wrt: names of the tensors of floats whose gradients are wanted; by default all that the kernel reads.

    Returns:
        A function of the kernel's arguments and `cotangents`, which returns arrays by name.

    Raises:
        CallError: `not-a-kernel`, `bad-argument`.
    """
    if not isinstance(kernel, Kernel | OpenKernel | StructuredKernel):
        raise CallError(
            f"a pullback of {getattr(kernel, '__name__', shown(kernel))}",
            code="not-a-kernel",
            location=caller_location(),
            help="decorate a function with @ts.kernel; ts.vjp differentiates functions of whole arrays",
        )
    several: Any = wrt if isinstance(wrt, tuple | list) else ()
    if wrt is not None and (not several or not all(isinstance(name, str) for name in several)):
        raise CallError(
            f"wrt is {shown(wrt)}",
            code="bad-argument",
            location=caller_location(),
            help='name tensors of the kernel: wrt=("A", "B")',
        )
    return Pullback(kernel, wrt)
