"""Compiles Philox and what is built on it."""

from __future__ import annotations

import math
from typing import Any

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.convert import apply, broadcast_to, cast_to, constant, operand, to_policy, to_ssa, to_tile
from tessera.frontend.ops.math import convert
from tessera.frontend.parts import index_tile
from tessera.frontend.registry import compiles
from tessera.frontend.values import Scalar, Tile, Value, is_number, show, wrap
from tessera.ir.tile.random import PhiloxOp
from tessera.ir.tile.types import describe
from tessera.ir.types import element_type
from tessera.numerics import dtypes


@compiles(tile.philox)
def _philox(b: Builder, seed: Any, offsets: Any) -> tuple[Tile | Scalar, ...]:
    given = operand(b, offsets, "philox: offsets")
    if isinstance(given, bool | float) or (isinstance(given, Value) and not given.dtype.is_int):
        raise TypeMismatchError(
            f"philox: offsets are {show(given)}, not integers",
            code="dtype-mismatch",
            help="give element numbers, such as ts.tile.linear_id()",
        )
    counters = to_ssa(b, given, element_type(dtypes.i64))
    alone = not isinstance(given, Tile)
    op = b.emit(PhiloxOp(_seed(b, seed), broadcast_to(b, counters, (1,)) if alone else counters))
    words = [Tile(word) for word in op.results]
    return tuple(index_tile(b, word, (0,)) for word in words) if alone else tuple(words)


def _seed(b: Builder, seed: Any) -> Any:
    ready = operand(b, seed, "philox: the seed")
    wide = element_type(dtypes.i64)
    if isinstance(ready, int) and not isinstance(ready, bool):
        # All 64-bit patterns are seeds, whichever sign they are written with.
        return constant(b, (ready + 2**63) % 2**64 - 2**63, wide)
    if isinstance(ready, Scalar) and ready.dtype.is_int:
        return cast_to(b, ready.ssa, wide)
    raise TypeMismatchError(
        f"philox: the seed is {show(ready)}, not an integer",
        code="dtype-mismatch",
        help="pass the seed as an int",
    )


@compiles(tile.rand)
def rand(b: Builder, seed: Any, offsets: Any) -> Any:
    """Return uniform numbers from the upper 24 bits of the first word, which f32 holds exactly."""
    word = _philox(b, seed, offsets)[0]
    bits = convert(b, apply(b, "shr", word, 8), dtypes.f32)
    return apply(b, "mul", bits, 2.0**-24)


@compiles(tile.randn)
def _randn(b: Builder, seed: Any, offsets: Any) -> Any:
    first, second = _philox(b, seed, offsets)[:2]
    # Rounding to f32 may give 1, the logarithm of which is 0; the half keeps it above 0.
    above_zero = apply(b, "fma", convert(b, first, dtypes.f32), 2.0**-32, 2.0**-33)
    turn = apply(b, "mul", convert(b, apply(b, "shr", second, 8), dtypes.f32), 2.0**-24 * 2 * math.pi)
    radius = apply(b, "sqrt", apply(b, "mul", apply(b, "log", above_zero), -2.0))
    return apply(b, "mul", radius, apply(b, "cos", turn))


@compiles(tile.randint)
def _randint(b: Builder, seed: Any, offsets: Any, low: Any, high: Any, dtype: Any) -> Any:
    kind = to_policy(dtype, "randint").dtype
    if not kind.is_int:
        raise TypeMismatchError(
            f"randint: {kind} is no integer type", code="dtype-mismatch", help="take ts.i32, ts.i64, …"
        )
    bounds = [_bound(b, value) for value in (low, high)]
    if all(is_number(bound) for bound in bounds) and not 0 < bounds[1] - bounds[0] < 2**32:
        raise TypeMismatchError(
            f"randint: no range from {bounds[0]} to {bounds[1]}",
            code="bad-argument",
            help="high is above low, by less than 2**32",
        )
    element = element_type(kind)
    if all(is_number(bound) for bound in bounds):
        constant(b, bounds[1] - 1, element)
        size: Any = bounds[1] - bounds[0]
    else:
        size = convert(b, apply(b, "sub", convert(b, bounds[1], dtypes.i64), bounds[0]), dtypes.u32)
    drawn = convert(b, apply(b, "mulhi", _philox(b, seed, offsets)[0], size), kind)
    least = to_ssa(b, bounds[0], element)
    return apply(b, "add", drawn, wrap(least))


def _bound(b: Builder, value: Any) -> Any:
    """Return a bound of `randint`: an int or a run-time integer."""
    ready = operand(b, value, "randint: a bound")
    if isinstance(ready, bool | float) or (isinstance(ready, Value) and not ready.dtype.is_int):
        raise TypeMismatchError(
            f"randint: the bound {show(ready)} is not an integer",
            code="dtype-mismatch",
            help="scale ts.tile.rand for random floats",
        )
    return ready


@compiles(tile.dropout)
def _dropout(b: Builder, x: Any, p: Any, seed: Any, offsets: Any) -> Any:
    if is_number(p) and not 0 <= p < 1:
        raise TypeMismatchError(
            f"dropout: the probability {p} is not in [0, 1)", code="bad-argument", help="0 keeps everything"
        )
    given = operand(b, x, "dropout")
    value = given if isinstance(given, Scalar) else to_tile(b, x, "dropout")
    if not value.dtype.is_float:
        raise TypeMismatchError(
            f"dropout: {describe(value.type)} is not float", code="dtype-mismatch", help="cast it to ts.f32"
        )
    keep = apply(b, "ge", rand(b, seed, offsets), p)
    scale: Any = 1.0 / (1.0 - p) if is_number(p) else apply(b, "div", 1.0, apply(b, "sub", 1.0, p))
    wide: Value = value if value.dtype.bits >= 32 else convert(b, value, dtypes.f32)
    kept = apply(b, "select", keep, apply(b, "mul", wide, scale), 0.0, what="dropout")
    return wrap(cast_to(b, kept.ssa, element_type(value.dtype)))
