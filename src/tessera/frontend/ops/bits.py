"""Compiles what looks at the bits of values; functions that need no more than their name are in `ops/math.py`."""

from __future__ import annotations

from typing import Any

from tessera.errors import TypeMismatchError
from tessera.frontend import tile
from tessera.frontend.builder import Builder
from tessera.frontend.convert import apply, cast_to, constant, operand, to_policy
from tessera.frontend.registry import compiles
from tessera.frontend.values import Value, is_number, show, wrap
from tessera.ir.tile.elementwise import BitcastOp
from tessera.ir.tile.types import element_of
from tessera.ir.types import element_type
from tessera.numerics import dtypes


@compiles(tile.bitcast)
def _bitcast(b: Builder, x: Any, dtype: Any) -> Any:
    target = to_policy(dtype, "bitcast").dtype.storage
    source = operand(b, x, "bitcast")
    if is_number(source):
        raise TypeMismatchError(
            f"bitcast: the number {source!r} has no dtype yet",
            code="dtype-mismatch",
            help="give it one first: ts.tile.cast(1.0, ts.f32)",
        )
    own = source.dtype.storage
    if own.bits != target.bits or own.bits % 8 or "bool" in (own.kind, target.kind):
        raise TypeMismatchError(
            f"bitcast: {show(source)} has {own.bits} bits an element, {target} has {target.bits}",
            code="dtype-mismatch",
            help="take a dtype of the same width (8, 16, 32 or 64 bits); ts.tile.cast converts numbers",
        )
    ready = cast_to(b, source.ssa, element_type(own))
    return wrap(ready if own == target else b.emit(BitcastOp(ready, element_type(target))).result)


@compiles(tile.byte_perm)
def _byte_perm(b: Builder, x: Any, y: Any, selector: Any) -> Any:
    return apply(b, "byte_perm", *(_word(b, value) for value in (x, y, selector)))


def _word(b: Builder, value: Any) -> Any:
    """Return an operand as u32."""
    ready = operand(b, value, "byte_perm")
    if isinstance(ready, Value):
        if not ready.dtype.is_int or ready.dtype.bits != 32:
            raise TypeMismatchError(
                f"byte_perm: {show(ready)} is no 32-bit integer",
                code="dtype-mismatch",
                help="cast it to ts.u32, or take the bits of a float: ts.tile.bitcast(x, ts.u32)",
            )
        return wrap(cast_to(b, ready.ssa, element_type(dtypes.u32)))
    return wrap(constant(b, ready, element_type(dtypes.u32)))


@compiles(tile.rotl)
def _rotl(b: Builder, x: Any, n: Any) -> Any:
    return _rotated(b, "rotl", x, n)


@compiles(tile.rotr)
def _rotr(b: Builder, x: Any, n: Any) -> Any:
    return _rotated(b, "rotr", x, n)


def _rotated(b: Builder, fn: str, x: Any, n: Any) -> Any:
    """Rotate in the width of what is rotated, which the dtype of a count does not change."""
    source, count = operand(b, x, fn), operand(b, n, f"{fn}: the count")
    if isinstance(source, Value) and source.dtype.is_int:
        count = _modulo_width(b, source, count)
    return apply(b, fn, source, count)


def _modulo_width(b: Builder, source: Value, count: Any) -> Any:
    """Return a count in the dtype of `source`: the bits that it loses are multiples of the width."""
    if isinstance(count, int):
        return int(count) % source.dtype.bits
    if isinstance(count, Value) and count.dtype.is_int:
        return wrap(cast_to(b, count.ssa, element_of(source.type)))
    return count
