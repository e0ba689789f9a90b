"""NumPy's calls on traced arrays: which of its functions is which of ours."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, cast

import numpy as np

from tessera.errors import TypeMismatchError, caller_location
from tessera.graph import assigning, elements, linear, places, reductions, statistics
from tessera.graph.compositions import call_method
from tessera.graph.functions import CREATED, FUNCTIONS, UFUNCS, WRITTEN, create, matmul, refused
from tessera.graph.traced import Array, Trace

REGISTERED = (assigning, elements, linear, places, reductions, statistics)
"""What registers NumPy's functions by being imported."""


def call_ufunc(trace: Trace, ufunc: Any, method: str, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """Return one of NumPy's elementwise functions.

    Raises:
        LanguageError: `not-traceable`.
        TypeMismatchError: `dtype-mismatch` for `dtype=` that NumPy does not cast to by itself.
    """
    if (over := call_method(ufunc, method)) is not None:
        return call(over, f"{ufunc.__name__}.{method}", inputs, options)
    if method == "outer" and not options:
        return _outer(trace, ufunc, *inputs)
    left = dict(options)
    out, where, dtype = left.pop("out", None), left.pop("where", True), left.pop("dtype", None)
    if method != "__call__" or left:
        form = f".{method}" if method != "__call__" else f"({next(iter(left))}=...)"
        raise refused(ufunc.__name__ + form)
    if dtype is not None:
        inputs = [_as_given(trace, ufunc, value, np.dtype(dtype)) for value in inputs]
    found = _fresh(_elements(trace, ufunc, inputs))
    if out is None and where is True:
        return found
    targets: tuple[Any, ...] = cast("tuple[Any, ...]", out) if isinstance(out, tuple) else (out,)
    if len(targets) != 1 or isinstance(found, tuple):
        raise refused(f"{ufunc.__name__}(out=...) of several results")
    if where is not True:
        found = cast(Any, np).where(where, found, np.zeros_like(found) if targets[0] is None else targets[0])
    return found if targets[0] is None else _written_to(targets[0], found, ufunc.__name__)


def _elements(trace: Trace, ufunc: Any, inputs: Sequence[Any]) -> Any:
    if ufunc is np.matmul:
        return matmul(*inputs)
    if ufunc in WRITTEN:
        return WRITTEN[ufunc](*inputs)
    if ufunc not in UFUNCS:
        raise refused(ufunc.__name__)
    with trace.at_caller():
        return trace.elementwise(UFUNCS[ufunc], inputs)


def _as_given(trace: Trace, ufunc: Any, value: Any, dtype: Any) -> Any:
    """Return an operand in the dtype that a call names."""
    found = trace.array(value)
    if isinstance(value, Array) and not np.can_cast(found.dtype, dtype, "same_kind"):
        raise TypeMismatchError(
            f"{ufunc.__name__}(dtype={dtype}) of {found!r}",
            code="dtype-mismatch",
            location=caller_location(),
            help="cast the result: .astype",
        )
    return found.astype(dtype)


def _outer(trace: Trace, ufunc: Any, a: Any, b: Any) -> Any:
    """Return a function of each element of one array with each of another."""
    first, second = trace.array(a), trace.array(b)
    return ufunc(first.reshape(*first.shape, *[1] * second.ndim), second)


def _written_to(target: Any, found: Any, name: str) -> Any:
    if not isinstance(target, Array):
        raise refused(f"{name}(out=...) of an array of the program around")
    return target.become(found)


def call_function(trace: Trace, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return one of NumPy's functions of whole arrays.

    Raises:
        LanguageError: `not-traceable`.
    """
    if function in CREATED:
        return create(trace, function, args, kwargs)
    ours = FUNCTIONS.get(function)
    if ours is None:
        raise refused(_name_of(function))
    found = call(ours, _name_of(function), args, kwargs)
    return found if function in _VIEWS or kwargs.get("out") is not None else _fresh(found)


_VIEWS = {
    getattr(np, name)
    for name in (
        *("reshape", "ravel", "transpose", "swapaxes", "moveaxis", "rollaxis", "expand_dims", "squeeze", "diagonal"),
        *("broadcast_to", "broadcast_arrays", "flip", "fliplr", "flipud", "rot90", "split", "array_split", "hsplit"),
        *("vsplit", "dsplit", "unstack", "atleast_1d", "atleast_2d", "atleast_3d", "matrix_transpose", "real"),
    )
    if hasattr(np, name)
}
"""Functions that give views of their argument; all others give arrays of their own."""


def _fresh(found: Any) -> Any:
    """Return results as arrays of their own, which others do not change with."""
    if isinstance(found, tuple | list):
        parts = [_fresh(one) for one in cast("list[Any]", found)]
        return parts if isinstance(found, list) else tuple(parts)
    if not isinstance(found, Array):
        return found
    return Array(found.tracing, found.ssa, is_own=found.is_own, is_weak=found.is_weak)


def _name_of(function: Any) -> str:
    """Return how a function of NumPy's is written after `np.`."""
    _, _, module = function.__module__.partition(".")
    return f"{module}.{function.__name__}" if module in ("linalg", "fft") else function.__name__


def call(ours: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return what one of our functions gives, in the memory of `out=` where that is given.

    Raises:
        LanguageError: `not-traceable` for an option that it has not.
    """
    try:
        given = signature(ours).bind(*args, **kwargs)
    except TypeError as error:
        raise refused(f"{name}: {error}") from None
    out: Any = given.arguments.pop("out", None)
    out = cast("tuple[Any, ...]", out)[0] if isinstance(out, tuple) else out
    found = ours(*given.args, **given.kwargs)
    return found if out is None else _written_to(out, found, name)
