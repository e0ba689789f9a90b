"""Python's floats among the arguments of a traced function: numbers that differ from call to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from xdsl.ir import SSAValue

if TYPE_CHECKING:
    from tessera.graph.traced import Trace


def _operator(ufunc: Any, swapped: bool = False) -> Callable[[Number, Any], Any]:
    def apply(self: Number, other: Any) -> Any:
        if other is None or isinstance(other, str | tuple | list | dict):
            return NotImplemented
        return self.__array_ufunc__(ufunc, "__call__", *((other, self) if swapped else (self, other)))

    return apply


class Number:
    """A float. Arithmetic with arrays takes their dtype, that of floats alone gives floats.

    What needs the value itself (`if`, `float()`, an option of an op) has it, and the graph is for that value only.

    Args:
        trace: the tracing.
        ssa: its value in the graph, f64 without dimensions.
        value: what it is at this call.
        sources: numbers of the arguments, and sizes, that it follows from.
    """

    __slots__ = ("_value", "sources", "ssa", "tracing")

    def __init__(self, trace: Trace, ssa: SSAValue, value: float, sources: frozenset[Any]) -> None:
        self.tracing, self.ssa, self._value, self.sources = trace, ssa, value, sources

    @property
    def array(self) -> Any:
        """The number as an array of f64."""
        from tessera.graph.traced import Array

        return Array(self.tracing, self.ssa)

    @property
    def known(self) -> float:
        """The value at this call, which is not asked of others."""
        return self._value

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

        if method == "__call__" and not options and all(isinstance(one, int | float | Number) for one in inputs):
            return self._of_floats(ufunc, inputs)
        return call_ufunc(self.tracing, ufunc, method, inputs, options)

    def _of_floats(self, ufunc: Any, inputs: tuple[Any, ...]) -> Any:
        """Return a function of floats alone: a float, where it is no truth value, which is decided for this call."""
        from tessera.graph.dispatch import call_ufunc

        with np.errstate(all="ignore"):
            value = ufunc(*(one.known if isinstance(one, Number) else float(one) for one in inputs))
        sources = frozenset[Any]().union(*(one.sources for one in inputs if isinstance(one, Number)))
        if not isinstance(value, np.floating):
            self.tracing.pin(sources)
            return value.item()
        found = call_ufunc(self.tracing, ufunc, "__call__", [_strong(one) for one in inputs], {})
        return Number(self.tracing, found.ssa, float(cast(Any, value)), sources)

    def __repr__(self) -> str:
        return repr(self._value)

    def __format__(self, spec: str) -> str:
        return format(self._value, spec)


def _strong(value: Any) -> Any:
    """Return an operand of floats alone, of f64 as Python computes."""
    return value.array if isinstance(value, Number) else float(value)
