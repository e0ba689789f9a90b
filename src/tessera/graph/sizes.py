"""Sizes of traced arrays: numbers that differ from call to call, of which programs compute in Python."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tessera.graph.floats import Number
from tessera.ir.graph.types import ordered
from tessera.numerics.dtypes import f64
from tessera.target.dims import Dim

if TYPE_CHECKING:
    from tessera.graph.traced import Trace

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq,
    "lt": operator.lt,
    "le": operator.le,
}
_WHOLE: dict[Any, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.floor_divide: cast(Any, operator).floordiv,
    np.remainder: operator.mod,
    np.maximum: max,
    np.minimum: min,
}
"""NumPy's functions of sizes that give sizes."""


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number, Python's or NumPy's."""
    return isinstance(value, int | cast(Any, np).integer) and not isinstance(value, bool)


class Size:
    """A size of a traced array. Arithmetic with sizes gives sizes, comparisons are decided by this call's."""

    __slots__ = ("_trace", "dim")

    def __init__(self, trace: Trace, dim: Dim) -> None:
        self._trace, self.dim = trace, dim

    def __index__(self) -> int:
        """Return this call's size; calls with another one are traced anew."""
        value = self.dim.value(self._trace.writer.hints)
        assert value is not None, "sizes are known at a call"
        self._trace.decide("eq", self.dim, Dim((), value))
        return value

    __int__ = __index__

    @property
    def number(self) -> Number:
        """The size as a float."""
        value = self.dim.value(self._trace.writer.hints)
        assert value is not None, "sizes are known at a call"
        return Number(self._trace, self._trace.writer.size(self.dim, f64), float(value), frozenset({self.dim}))

    def _with(self, other: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """Return what sizes and whole numbers give as a size, with floats as a float."""
        if isinstance(other, Size):
            return size(self._trace, combine(self.dim, other.dim))
        if is_whole(other):
            return size(self._trace, combine(self.dim, Dim((), int(other))))
        return combine(self.number, other) if isinstance(other, float | Number) else NotImplemented

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: a // b)

    def __rfloordiv__(self, other: Any) -> Any:
        return other // self.__index__() if isinstance(other, int | float) else NotImplemented

    def __neg__(self) -> Any:
        return 0 - self

    def __pos__(self) -> Any:
        return self

    __abs__ = __pos__

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other if isinstance(other, int | float | Size | Number) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return other % self.__index__() if isinstance(other, int | float) else NotImplemented

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __truediv__(self, other: Any) -> Any:
        return self.number / (other.number if isinstance(other, Size) else other)

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.number

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, int) and not isinstance(other, bool) and 1 <= other <= 4:
            return self if other == 1 else self * self ** (other - 1)
        return self.number**other if isinstance(other, float | Number) else self.__index__() ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** self.__index__()

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(self.__index__(), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from tessera.graph.dispatch import call_ufunc
        from tessera.graph.traced import Array

        if any(isinstance(one, Array) for one in inputs) or method != "__call__" or options:
            return call_ufunc(self._trace, ufunc, method, inputs, options)
        if any(isinstance(one, np.ndarray) for one in inputs):  # no part of the graph
            return ufunc(*(one.__index__() if isinstance(one, Size) else one for one in inputs))
        if ufunc in _WHOLE:
            return _WHOLE[ufunc](*inputs)
        return ufunc(*(one.number if isinstance(one, Size) else one for one in inputs))

    def _decided(self, kind: str, other: Any, swapped: bool = False) -> Any:
        if isinstance(other, float | Number):
            value = self.__index__()
            given = (float(other), value) if swapped else (value, float(other))
            return COMPARE[kind](*given)
        if not (is_whole(other) or isinstance(other, Size)):
            return NotImplemented
        dims = (self.dim, other.dim if isinstance(other, Size) else Dim((), int(other)))
        return self._trace.decide(kind, *(dims[::-1] if swapped else dims))

    def __eq__(self, other: Any) -> Any:
        return self._decided("eq", other)

    def __lt__(self, other: Any) -> Any:
        return self._decided("lt", other)

    def __le__(self, other: Any) -> Any:
        return self._decided("le", other)

    def __gt__(self, other: Any) -> Any:
        return self._decided("lt", other, True)

    def __ge__(self, other: Any) -> Any:
        return self._decided("le", other, True)

    def __bool__(self) -> bool:
        return not self == 0

    def __repr__(self) -> str:
        return str(self.dim)


def size(trace: Trace, dim: Dim) -> Any:
    """Return a size: a number where it is always the same."""
    dim = ordered(dim)
    return dim.scale if dim.is_static else Size(trace, dim)
