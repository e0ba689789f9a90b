"""Scalar arithmetic of TIR-T with folding as it is built, so that dumps show no `x + 0`."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects.builtin import LocationAttr
from xdsl.ir import Attribute, Operation, SSAValue

from tessera.ir.target.arithmetic import CastOp, ConstantOp, ElementwiseOp, constant_value
from tessera.ir.types import dtype_of, index

_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "minimum": min,
    "maximum": max,
}


class Scalars:
    """Builds integer scalars at an insertion point.

    Args:
        insert: adds an op at the current insertion point.
        location: gives the location that new ops take.
    """

    def __init__(self, insert: Callable[[Operation], None], location: Callable[[], LocationAttr]):
        self._insert = insert
        self._location = location

    def _add(self, op: Operation) -> SSAValue:
        op.location = self._location()
        self._insert(op)
        return op.results[0]

    def constant(self, value: int | float, type_: Attribute = index) -> SSAValue:
        """Return a constant."""
        return self._add(ConstantOp(value, type_))

    def binary(self, fn: str, a: SSAValue | int, b: SSAValue | int, type_: Attribute = index) -> SSAValue:
        """Return `fn(a, b)` of integers, folded where operands are known or neutral."""
        left = a if isinstance(a, int) else constant_value(a)
        right = b if isinstance(b, int) else constant_value(b)
        if (
            isinstance(left, int)
            and isinstance(right, int)
            and fn in _FOLD
            and (right or fn not in ("floordiv", "mod"))
        ):
            return self.constant(_FOLD[fn](left, right), type_)
        if isinstance(a, SSAValue) and (
            (right == 0 and fn in ("add", "sub")) or (right == 1 and fn in ("mul", "floordiv"))
        ):
            return a
        if isinstance(b, SSAValue) and ((left == 0 and fn == "add") or (left == 1 and fn == "mul")):
            return b
        if fn == "mul" and 0 in (left, right):
            return self.constant(0, type_)
        first = self.constant(a, type_) if isinstance(a, int) else a
        second = self.constant(b, type_) if isinstance(b, int) else b
        return self._add(ElementwiseOp(fn, [first, second]))

    def add(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """Return `a + b` of indices."""
        return self.binary("add", a, b)

    def mul(self, a: SSAValue | int, b: SSAValue | int) -> SSAValue:
        """Return `a * b` of indices."""
        return self.binary("mul", a, b)

    def ceildiv(self, a: SSAValue, b: int, type_: Attribute = index) -> SSAValue:
        """Return `ceil(a / b)` of integers for a positive `b`."""
        return self.binary("floordiv", self.binary("add", a, b - 1, type_), b, type_)

    def cast(self, value: SSAValue, type_: Attribute) -> SSAValue:
        """Return the integer in another integer type."""
        if value.type == type_:
            return value
        known, dtype = constant_value(value), dtype_of(type_)
        low = 0 if dtype.kind == "uint" else -(1 << dtype.bits - 1)
        if known is not None and low <= known < low + (1 << dtype.bits):
            return self.constant(known, type_)
        return self._add(CastOp(value, type_))  # where it does not fit, it wraps around
