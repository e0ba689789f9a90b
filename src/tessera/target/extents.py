"""What the host computes before a launch, from the sizes, strides and scalars of a call: extents of grids, assumptions.

Integers have 64 bits here. What is computed in a narrower dtype is cut to it by `signed` or `unsigned`, as on the
device; what 64 bits do not hold is an error, as no grid is so large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from typing import Any, cast

from tessera.numerics.integers import wrapped
from tessera.target.schema import ArtifactError, whole, wrong

Extent = list[Any] | tuple[Any, ...]
"""`["const", 4]`, `["size", arg, axis]`, `["stride", arg, axis]` in elements, `["scalar", arg]`, or `[fn, a, b]` for fn
in `FUNCTIONS`."""

_AGAIN = "compile the kernel again"
_DEEPEST = 64
_WIDEST = 64
"""Bits."""


FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "add": int.__add__,
    "sub": int.__sub__,
    "mul": int.__mul__,
    "floordiv": int.__floordiv__,
    "ceildiv": lambda a, b: -(-a // b),
    "mod": int.__mod__,
    "minimum": min,
    "maximum": max,
    "signed": partial(wrapped, signed=True),
    "unsigned": partial(wrapped, signed=False),
    "eq": lambda a, b: int(a == b),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
}
"""Functions of two integers. `signed` and `unsigned` give the lowest `b` bits of `a`; comparisons give 0 or 1."""

_CUTS = ("signed", "unsigned")


def evaluate(extent: Extent, sizes: Any, scalars: Any, strides: Any = ()) -> int:
    """Compute an extent.

    Args:
        extent: the expression.
        sizes: `sizes[arg][axis]` is the size of a tensor argument.
        scalars: `scalars[arg]` is the value of a scalar argument.
        strides: `strides[arg][axis]` is the stride of a tensor argument, where the expression has any.

    Raises:
        ArtifactError: `grid-division-by-zero`, `grid-too-large` for what 64 bits do not hold, and for what is no
            such expression.
    """
    match extent:
        case ["const", value]:
            return int(value)
        case ["size", arg, axis]:
            return int(sizes[arg][axis])
        case ["stride", arg, axis]:
            return int(strides[arg][axis])
        case ["scalar", arg]:
            return _whole_number(scalars[arg])
        case [fn, left, right]:
            return _apply(fn, evaluate(left, sizes, scalars, strides), evaluate(right, sizes, scalars, strides))
        case _:
            raise ArtifactError(f"{extent!r} is not a grid expression", help=_AGAIN)


def _whole_number(value: Any) -> int:
    if isinstance(value, float) and not isfinite(value):
        raise ArtifactError(f"a grid extent of {value}", code="grid-too-large", help="pass a finite number")
    return int(value)


def _apply(fn: str, a: int, b: int) -> int:
    if fn not in FUNCTIONS:
        raise ArtifactError(f"no grid function is called {fn!r}", help=_AGAIN)
    if b == 0 and fn in ("floordiv", "ceildiv", "mod"):
        raise ArtifactError(
            "a grid extent divides by zero", code="grid-division-by-zero", help="pass a divisor that is not 0"
        )
    found = FUNCTIONS[fn](a, b)
    if fn not in _CUTS and not -(2**63) <= found < 2**63:
        raise ArtifactError(
            f"a grid extent is computed from {found}, which 64 bits do not hold",
            code="grid-too-large",
            help="pass smaller numbers",
        )
    return found


def leaves(extent: Extent) -> Iterator[Any]:
    """Yield what an extent depends on: `["size", arg, axis]`, `["stride", arg, axis]`, `["scalar", arg]`."""
    match extent:
        case ["const", _]:
            pass
        case ["size" | "stride", _, _] | ["scalar", _]:
            yield extent
        case [_, left, right]:
            yield from leaves(left)
            yield from leaves(right)
        case _:
            raise ArtifactError(f"{extent!r} is not a grid expression", help=_AGAIN)


def extent_of(where: str, value: Any, depth: int = 0) -> Extent:
    """Check that a value from a file is an extent."""
    parts = cast("list[Any]", value) if type(value) is list else []
    match parts:
        case ["const", number]:
            whole(-(2**63))(where, number)
        case ["size" | "stride", arg, axis]:
            whole(0)(where, arg)
            whole(0)(where, axis)
        case ["scalar", arg]:
            whole(0)(where, arg)
        case [str(fn), left, ["const", bits]] if fn in _CUTS and depth < _DEEPEST:
            extent_of(where, left, depth + 1)
            whole(1, _WIDEST)(where, bits)
        case [str(fn), left, right] if fn in FUNCTIONS and fn not in _CUTS and depth < _DEEPEST:
            extent_of(where, left, depth + 1)
            extent_of(where, right, depth + 1)
        case _:
            raise wrong(where, f"is {value!r:.60}, not a grid expression")
    return parts
