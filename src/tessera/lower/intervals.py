"""Interval arithmetic on integers: exact results, whether or not a dtype holds them."""

from __future__ import annotations

from collections.abc import Callable

from tessera.data import dataclass
from tessera.numerics.dtypes import DType


@dataclass(frozen=True, slots=True)
class Interval:
    """The integers from `low` to `high`, both included."""

    low: int
    high: int

    def within(self, other: Interval) -> bool:
        """Return whether all of it lies in another one."""
        return other.low <= self.low and self.high <= other.high


def range_of(dtype: DType) -> Interval:
    """Return the numbers that an integer (or bool) dtype holds."""
    if dtype.kind == "bool":
        return Interval(0, 1)
    if dtype.kind == "uint":
        return Interval(0, (1 << dtype.bits) - 1)
    return Interval(-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1)


def _mul(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(ends), max(ends))


def _floordiv(a: Interval, b: Interval) -> Interval | None:
    if b.low < 1:
        return None
    ends = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(ends), max(ends))


def _mod(a: Interval, b: Interval) -> Interval | None:
    if b.low < 1:
        return None
    return a if 0 <= a.low and a.high < b.low else Interval(0, b.high - 1)


def _and(a: Interval, b: Interval) -> Interval | None:
    highs = [part.high for part in (a, b) if part.low >= 0]
    return Interval(0, min(highs)) if highs else None


def _or(a: Interval, b: Interval) -> Interval | None:
    return Interval(0, (1 << max(a.high, b.high).bit_length()) - 1) if min(a.low, b.low) >= 0 else None


def _shr(a: Interval, b: Interval) -> Interval | None:
    return Interval(0, a.high >> min(b.low, 64)) if a.low >= 0 and b.low >= 0 else None


def _abs(a: Interval) -> Interval:
    return Interval(max(a.low, -a.high, 0), max(-a.low, a.high))


UNARY: dict[str, Callable[[Interval], Interval]] = {
    "neg": lambda a: Interval(-a.high, -a.low),
    "abs": _abs,
}

BINARY: dict[str, Callable[[Interval, Interval], Interval | None]] = {
    "add": lambda a, b: Interval(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: Interval(a.low - b.high, a.high - b.low),
    "mul": _mul,
    "floordiv": _floordiv,
    "mod": _mod,
    "minimum": lambda a, b: Interval(min(a.low, b.low), min(a.high, b.high)),
    "maximum": lambda a, b: Interval(max(a.low, b.low), max(a.high, b.high)),
    "select": lambda a, b: Interval(min(a.low, b.low), max(a.high, b.high)),
    "and": _and,
    "or": _or,
    "xor": _or,
    "shr": _shr,
}
"""Functions of two operands (of `select`, the last two); None where nothing is known."""
