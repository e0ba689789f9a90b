"""Floats among the arguments of a traced function, Python's and NumPy's: numbers that differ from call to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.ir import SSAValue

from tessera.ir.graph.types import array_type
from tessera.numerics.dtypes import DType, f64, from_numpy, i64

if TYPE_CHECKING:
    from tessera.graph.traced import Trace


def _operator(ufunc: Any, swapped: bool = False) -> Callable[[Number, Any], Any]:
    def apply(self: Number, other: Any) -> Any:
        if other is None or isinstance(other, str | tuple | list | dict):
            return NotImplemented
        return self.__array_ufunc__(ufunc, "__call__", *((other, self) if swapped else (self, other)))

    return apply


def is_float(value: Any) -> bool:
    """Return whether a value is a float, Python's or one of NumPy's scalars."""
    return isinstance(value, float) or (isinstance(value, np.generic) and float_type(value).is_float)


def float_type(value: Any) -> DType:
    """Return the dtype of a number as an array: f64 for Python's."""
    found = f64 if isinstance(value, float) else from_numpy(value.dtype)
    return i64 if found is None else found


class Number:
    """A float. Arithmetic with arrays takes their dtype, that of floats alone gives floats.

    One of f64 is as Python's floats are; others, NumPy's scalars, keep their dtype beside arrays of smaller ones.

    What needs the value itself (`if`, `float()`, an option of an op) has it, and the graph is for that value only.

    Args:
        trace: the tracing.
        ssa: its value in the graph, without dimensions.
        value: what it is at this call.
        sources: numbers of the arguments, and sizes, that it follows from.
    """

    __slots__ = ("_value", "sources", "ssa", "tracing")

    def __init__(self, trace: Trace, ssa: SSAValue, value: float, sources: frozenset[Any]) -> None:
        self.tracing, self.ssa, self._value, self.sources = trace, ssa, value, sources

    @property
    def array(self) -> Any:
        """The number as an array."""
        from tessera.graph.traced import Array

        return Array(self.tracing, self.ssa)

    def __getattr__(self, name: str) -> Any:
        """Return what NumPy's scalars have of arrays, such as `dtype` and `reshape`, or what floats have."""
        if name.startswith("_"):
            raise AttributeError(f"floats have no attribute {name!r}")
        return getattr(self.array if hasattr(np.ndarray, name) else float(self), name)

    @property
    def is_weak(self) -> bool:
        """Whether it takes the dtype of arrays beside it."""
        return array_type(self.ssa).dtype == f64

    @property
    def known(self) -> Any:
        """The value at this call, which is not asked of others, as one of Python's or NumPy's."""
        return self._value if self.is_weak else array_type(self.ssa).dtype.numpy().type(self._value)

    def __float__(self) -> float:
        """Return the value; calls with another one are traced anew."""
        self.tracing.pin(self.sources)
        return self._value

    __add__, __radd__ = _operator(np.add), _operator(np.add, True)
    __sub__, __rsub__ = _operator(np.subtract), _operator(np.subtract, True)
    __mul__, __rmul__ = _operator(np.multiply), _operator(np.multiply, True)
    __truediv__, __rtruediv__ = _operator(np.divide), _operator(np.divide, True)
    __floordiv__, __rfloordiv__ = _operator(np.floor_divide), _operator(np.floor_divide, True)
    __mod__, __rmod__ = _operator(np.remainder), _operator(np.remainder, True)
    __pow__, __rpow__ = _operator(np.power), _operator(np.power, True)
    __lt__, __le__ = _operator(np.less), _operator(np.less_equal)
    __gt__, __ge__ = _operator(np.greater), _operator(np.greater_equal)
    __eq__, __ne__ = _operator(np.equal), _operator(np.not_equal)  # pyright: ignore[reportAssignmentType]

    def __neg__(self) -> Any:
        return self.__array_ufunc__(np.negative, "__call__", self)

    def __pos__(self) -> Number:
        return self

    def __abs__(self) -> Any:
        return self.__array_ufunc__(np.absolute, "__call__", self)

    def __bool__(self) -> bool:
        return bool(float(self))

    def __int__(self) -> int:
        return int(float(self))

    def __round__(self, digits: int | None = None) -> Any:
        return round(float(self), digits)

    def __hash__(self) -> int:
        return hash(float(self))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(float(self), dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from tessera.graph.dispatch import call_ufunc

        floats = all(isinstance(one, int | Number) or is_float(one) for one in inputs)
        if method == "__call__" and not options and floats:
            return self._of_floats(ufunc, inputs)
        return call_ufunc(self.tracing, ufunc, method, inputs, options)

    def _of_floats(self, ufunc: Any, inputs: tuple[Any, ...]) -> Any:
        """Return a function of floats alone: a float, where it is no truth value, which is decided for this call."""
        from tessera.graph.dispatch import call_ufunc

        with np.errstate(all="ignore"):
            value = ufunc(*map(_known, inputs))
        sources = frozenset[Any]().union(*(one.sources for one in inputs if isinstance(one, Number)))
        if not is_float(value):
            self.tracing.pin(sources)
            return value.item()
        is_weak = not any(map(_keeps_dtype, inputs))
        given = [_strong(one) for one in inputs] if is_weak else inputs
        found = call_ufunc(self.tracing, ufunc, "__call__", given, {})
        return Number(self.tracing, found.ssa, float(value), sources)

    def __repr__(self) -> str:
        return repr(self._value)

    def __format__(self, spec: str) -> str:
        return format(self._value, spec)


def _known(value: Any) -> Any:
    return value.known if isinstance(value, Number) else value


def _keeps_dtype(value: Any) -> bool:
    """Return whether floats beside a value take its dtype."""
    return (
        not value.is_weak if isinstance(value, Number) else isinstance(value, np.generic) and float_type(value) != f64
    )


def _strong(value: Any) -> Any:
    """Return an operand of floats alone, of f64 as Python computes."""
    return value.array if isinstance(value, Number) else float(value)
