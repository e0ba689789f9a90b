"""What a traced function computes with: arrays and sizes whose operators append to a graph."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn, cast

import numpy as np
from xdsl.ir import BlockArgument, SSAValue

from tessera.errors import CallError, LanguageError, TesseraError, TypeMismatchError, caller_location, shown
from tessera.graph.floats import Number
from tessera.ir.graph.types import ArrayType, array_type, dims_of, ordered
from tessera.ir.graph.views import memory_of
from tessera.ir.graph.writer import GraphWriter
from tessera.ir.locations import to_loc
from tessera.numerics.dtypes import DType, f32, f64, from_numpy, i64
from tessera.ops import arrays
from tessera.ops.traced import Traced
from tessera.runtime.device import Device
from tessera.target.dims import Dim


class Trace:
    """One tracing of a function.

    Args:
        name: the function's name.
        types: the arrays that it takes.
        hints: sizes of the symbols at this call.
        device: where the arrays are.
    """

    def __init__(self, name: str, types: Sequence[ArrayType], hints: dict[str, int], device: Device) -> None:
        self.writer = GraphWriter(name, types, hints)
        self.device = device
        self.constants: dict[int, tuple[Any, SSAValue]] = {}
        """Arrays of the program around that the function reads."""
        self.decided: dict[tuple[str, Dim, Dim], bool] = {}
        """What comparisons of sizes gave: every call of the graph has to give the same."""
        self.pinned: set[int] = set()
        """Arguments, floats, whose values are those of every call of the graph."""
        self._names: dict[Any, str] = {}
        self._used: dict[str, int] = {}
        self.targets: dict[int, SSAValue] = {}
        """What is to be written to arguments, by their numbers."""
        self.depth = 0
        """How many derivatives are taken around what is traced."""

    def name_of(self, name: str, key: Any) -> tuple[str, bool]:
        """Return the name of what a call calls, and whether it is new: equal keys have one."""
        found = self._names.get(key)
        if found is not None:
            return found, False
        count = self._used[name] = self._used.get(name, 0) + 1
        self._names[key] = made = name if count == 1 else f"{name} {count}"
        return made, True

    def runs(self) -> dict[str, Callable[..., Any]]:
        """Return how each callee is run, by name."""
        return {name: callee.run for name, callee in self.writer.callees.items()}

    def changing(self) -> dict[str, int]:
        """Return how many arrays those callees overwrite that overwrite any, by name."""
        return {name: callee.changed for name, callee in self.writer.callees.items() if callee.changed}

    @contextmanager
    def differentiated(self) -> Generator[None]:
        """Trace what a derivative is taken of."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextmanager
    def at_caller(self) -> Any:
        """Give the user's line to what is written and raised inside."""
        where = caller_location()
        self.writer.location = to_loc(where)
        try:
            yield self.writer
        except TesseraError as error:
            raise error.at(where) from error.__cause__

    def operand(self, value: Any) -> Any:
        """Return a value as an operand of the graph: an array of it, or a number.

        Raises:
            TypeMismatchError: `not-a-value`.
        """
        if isinstance(value, Array):
            return value.ssa
        if isinstance(value, Number):
            return self.writer.cast(value.ssa, f32)
        if isinstance(value, Size):
            return self.writer.size(value.dim, _INDEX)
        if isinstance(value, bool | int | float):
            return value
        number: Any = value
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not number.shape):
            found = from_numpy(number.dtype)
            if found is not None:
                return self.writer.full(number.item(), found)
        if hasattr(number, "shape") and hasattr(number, "dtype"):
            return self.constant(number)
        raise TypeMismatchError(
            f"{shown(number)} is no array or number", code="not-a-value", help="give an array, or a Python number"
        )

    def operands(self, values: Sequence[Any]) -> list[Any]:
        """Return values as operands of one op: what is made of Python's floats alone takes the dtype of the others."""
        if not any(map(_is_weak, values)):
            return list(map(self.operand, values))
        found = [0.0 if _is_weak(value) else self.operand(value) for value in values]
        dtype = self.writer.common(found) if any(isinstance(one, SSAValue) for one in found) else f64
        pairs = zip(values, found, strict=True)
        return [self.writer.cast(value.ssa, dtype) if _is_weak(value) else one for value, one in pairs]

    def elementwise(self, fn: str, values: Sequence[Any], condition: Sequence[Any] = ()) -> Array:
        """Return a function of arrays and numbers.

        Args:
            fn: its name.
            values: what is promoted to one dtype; of floats alone that is f64, as long as no array takes part.
            condition: what comes before them.
        """
        weak = all(_is_weak(value) or isinstance(value, bool | int | float) for value in values)
        weak = weak and any(_is_weak(value) or isinstance(value, float) for value in values)
        given = [*map(self.operand, condition), *self.operands(values)]
        found = self.writer.apply(fn, *given, dtype=f64 if weak else None)
        return Array(self, found, is_weak=weak and array_type(found).dtype == f64)

    def constant(self, array: Any) -> SSAValue:
        """Return an array of the program around as an argument of the graph."""
        if id(array) not in self.constants:
            shape = arrays.shape_of(array, "a constant")
            type_ = ArrayType.of([Dim((), size) for size in shape], arrays.dtype_of(array, "a constant"))
            block = self.writer.graph.body.block
            self.constants[id(array)] = array, block.insert_arg(type_, len(block.args))
        return self.constants[id(array)][1]

    def array(self, value: Any) -> Array:
        """Return a value as an array of the graph."""
        found = self.operand(value)
        return Array(self, self.writer.as_array(found, self.writer.common([found])))

    def decide(self, kind: str, left: Dim, right: Dim) -> bool:
        """Return how two sizes compare; every call of the graph has to give the same."""
        values = left.value(self.writer.hints), right.value(self.writer.hints)
        found = bool(COMPARE[kind](cast(int, values[0]), cast(int, values[1])))
        if not (left - right).is_static:
            self.decided[kind, left, right] = found
        return found


def _is_weak(value: Any) -> bool:
    """Return whether a value of the graph is made of Python's floats alone."""
    return isinstance(value, Number) or (isinstance(value, Array) and value.is_weak)


COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__,
    "lt": int.__lt__,
    "le": int.__le__,
}
_INDEX = i64


class Size:
    """A size of a traced array. Arithmetic with sizes gives sizes, comparisons are decided by this call's."""

    __slots__ = ("_trace", "dim")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(self, trace: Trace, dim: Dim) -> None:
        self._trace, self.dim = trace, dim

    def __index__(self) -> int:
        """Return this call's size; calls with another one are traced anew."""
        value = self.dim.value(self._trace.writer.hints)
        assert value is not None, "sizes are known at a call"
        self._trace.decide("eq", self.dim, Dim((), value))
        return value

    __int__ = __index__

    def _with(self, other: Any, combine: Callable[[Any, Any], Dim]) -> Any:
        if isinstance(other, Size):
            return size(self._trace, combine(self.dim, other.dim))
        if isinstance(other, int) and not isinstance(other, bool):
            return size(self._trace, combine(self.dim, Dim((), other)))
        return NotImplemented

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

    def __neg__(self) -> Any:
        return 0 - self

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __truediv__(self, other: Any) -> Any:
        return self._trace.array(self) / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self._trace.array(self)

    def _decided(self, kind: str, other: Any, swapped: bool = False) -> Any:
        if isinstance(other, bool) or not isinstance(other, int | Size):
            return NotImplemented
        dims = (self.dim, other.dim if isinstance(other, Size) else Dim((), other))
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


def dims_from(shape: Sequence[Any]) -> tuple[Dim, ...]:
    """Return sizes as a graph has them.

    Raises:
        TypeMismatchError: `not-a-value` for what is no size.
    """
    return tuple(map(dim_from, shape))


def dim_from(value: Any) -> Dim:
    """Return a size as a graph has it."""
    if isinstance(value, Size):
        return value.dim
    if hasattr(value, "__index__") and not isinstance(value, Array):
        return Dim((), value.__index__())
    raise TypeMismatchError(f"{shown(value)} is no size", code="not-a-value", help="give a number or x.shape[i]")


def size(trace: Trace, dim: Dim) -> Any:
    """Return a size: a number where it is always the same."""
    dim = ordered(dim)
    return dim.scale if dim.is_static else Size(trace, dim)


def _in_place(fn: str) -> Callable[[Any, Any], Any]:
    operator = _operator(fn)

    def change(self: Array, other: Any) -> Any:
        found = operator(self, other)
        return found if found is NotImplemented else self.become(found)

    return change


class MissingMethodError(LanguageError, AttributeError):
    """A method of NumPy's arrays that traced ones have not: `hasattr` says so."""


def _untraceable(what: str, help: str, kind: type[LanguageError] = LanguageError) -> LanguageError:
    return kind(f"ts.jit has no {what}", code="not-traceable", location=caller_location(), help=help)


_UNCHANGED = "make a new array: np.where(condition, x, y), np.concatenate, or x = x + y"


def _needed(what: str) -> LanguageError:
    return LanguageError(
        f"{what} needs the value of a traced array",
        code="value-needed",
        location=caller_location(),
        help="choose between arrays with np.where; or compute it outside of ts.jit",
    )


def _operator(fn: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def apply(self: Array, other: Any) -> Any:
        if other is None or isinstance(other, str | tuple | list | dict):
            return NotImplemented
        return self.apply(fn, *((other, self) if swapped else (self, other)))

    return apply


class Array(Traced):
    """An array of a traced function. NumPy's functions take it, and it has their operators and methods.

    Args:
        trace: the tracing.
        ssa: its value in the graph; another one once a kernel has written it.
        is_own: whether it is memory of its own in which nothing is yet but one number.
        target: the number of the argument that it is, which ops that change arrays write to; None for all others.
        is_weak: whether it is made of Python's floats alone: beside other arrays it takes their dtype.
        is_view: whether it is a part of an argument where NumPy's array would be, too.
    """

    __slots__ = ("is_own", "is_view", "is_weak", "ssa", "target", "trace")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(
        self,
        trace: Trace,
        ssa: SSAValue,
        is_own: bool = False,
        target: int | None = None,
        is_weak: bool = False,
        is_view: bool = False,
    ) -> None:
        self.trace, self.ssa, self.is_own, self.target, self.is_weak = trace, ssa, is_own, target, is_weak
        self.is_view = is_view or target is not None

    def view(self, ssa: SSAValue) -> Array:
        """Return a view of it, by its value."""
        return Array(self.trace, ssa, is_view=self.is_view)

    def given_back(self) -> SSAValue:
        """Return its value as a result: in memory of its own where NumPy's array would be."""
        shares = not self.is_view and isinstance(memory_of(self.ssa), BlockArgument)
        return self.trace.writer.copy(self.ssa) if shares else self.ssa

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes: numbers, or sizes that differ from call to call."""
        return tuple(size(self.trace, dim) for dim in dims_of(self.ssa))

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return array_type(self.ssa).rank

    @property
    def dtype(self) -> Any:
        """The dtype, as NumPy has it."""
        return array_type(self.ssa).dtype.numpy()

    @property
    def element(self) -> DType:
        """The dtype, as Tessera has it."""
        return array_type(self.ssa).dtype

    @property
    def is_differentiated(self) -> bool:
        """Whether a derivative is taken around what is traced."""
        return self.trace.depth > 0

    def join(self, value: Any) -> Any:
        """Return an array of the program around as one of the graph; anything else as it is."""
        return self.trace.array(value) if arrays.is_array(value) else value

    def filled(self, shape: Sequence[Any], dtype: DType) -> Array:
        """Return zeros beside the array."""
        writer = self.trace.writer
        zero = writer.cast(writer.full(0.0, f32), dtype) if dtype.is_float else writer.full(0, dtype)
        return Array(self.trace, writer.broadcast_to(zero, dims_from(shape)))

    def copied(self) -> Array:
        """Return the array with elements that follow one another."""
        return Array(self.trace, self.trace.writer.copy(self.ssa))

    def call(self, step: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the results of a step of the library."""
        from tessera.graph.steps import call_step

        return call_step(self.trace, step, arguments)

    def change(self, name: str, run: Any, changed: Sequence[Any], read: Sequence[Any], made: Sequence[Any]) -> Any:
        """Return the results of what changes arrays, this one or another of its graph among them."""
        from tessera.graph.changes import call_changing

        return call_changing(self.trace, name, run, changed, read, made)

    @property
    def size(self) -> Any:
        """The number of elements."""
        return size(self.trace, self.trace.writer.count(self.ssa, range(self.ndim)))

    @property
    def T(self) -> Array:
        """The array with its dimensions in the opposite order."""
        return self.transpose()

    def apply(self, fn: str, *values: Any) -> Array:
        """Return an elementwise function of arrays and numbers, this one among them."""
        with self.trace.at_caller():
            return self.trace.elementwise(fn, values)

    __add__, __radd__ = _operator("add"), _operator("add", True)
    __sub__, __rsub__ = _operator("sub"), _operator("sub", True)
    __mul__, __rmul__ = _operator("mul"), _operator("mul", True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", True)
    __floordiv__, __rfloordiv__ = _operator("floordiv"), _operator("floordiv", True)
    __mod__, __rmod__ = _operator("mod"), _operator("mod", True)
    __and__, __rand__ = _operator("and"), _operator("and", True)
    __or__, __ror__ = _operator("or"), _operator("or", True)
    __xor__, __rxor__ = _operator("xor"), _operator("xor", True)
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")
    __eq__, __ne__ = _operator("eq"), _operator("ne")  # pyright: ignore[reportAssignmentType]
    __lshift__, __rlshift__ = _operator("shl"), _operator("shl", True)
    __rshift__, __rrshift__ = _operator("shr"), _operator("shr", True)
    __rpow__ = _operator("pow", True)
    __iadd__, __isub__ = _in_place("add"), _in_place("sub")
    __imul__, __itruediv__ = _in_place("mul"), _in_place("div")
    __ifloordiv__, __imod__ = _in_place("floordiv"), _in_place("mod")
    __iand__, __ior__, __ixor__ = _in_place("and"), _in_place("or"), _in_place("xor")
    __ilshift__, __irshift__ = _in_place("shl"), _in_place("shr")

    def become(self, found: Array) -> Array:
        """Return this array with other elements, as `x += y` changes NumPy's arrays: all its names stand for them.

        An argument is written when the function ends. Inside of what is differentiated it stays, and the result is new.

        Raises:
            CallError: `written-argument` for a part of an argument.
            TypeMismatchError: `shape-mismatch` or `dtype-mismatch` for elements that it has no room for.
        """
        trace, own, other = self.trace, array_type(self.ssa), array_type(found.ssa)
        if trace.depth and self.is_view:
            return found
        if self.is_view and self.target is None:
            raise CallError(
                "a part, a transpose or another shape of an argument is changed",
                code="written-argument",
                location=caller_location(),
                help=_UNCHANGED,
            )
        if own.dims != other.dims:
            raise TypeMismatchError(
                f"{self!r} has no room for {found!r}",
                code="shape-mismatch",
                location=caller_location(),
                help=_UNCHANGED,
            )
        if other.dtype.is_float and not own.dtype.is_float:
            raise TypeMismatchError(
                f"{self!r} does not hold {other.dtype}",
                code="dtype-mismatch",
                location=caller_location(),
                help=_UNCHANGED,
            )
        with trace.at_caller() as writer:
            self.ssa, self.is_own = writer.cast(found.ssa, own.dtype), False
        if self.target is not None:
            trace.targets[self.target] = self.ssa
        return self

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise _untraceable("assignment to elements of an array", _UNCHANGED)

    def __getattr__(self, name: str) -> Any:
        """Return a method that is one of NumPy's functions; refuse those that are not here."""
        from tessera.graph.compositions import METHODS

        if name in METHODS:
            return partial(METHODS[name], self)
        if not name.startswith("_") and callable(getattr(np.ndarray, name, None)):
            help = f"see whether np.{name} is there (docs/graphs.md)"
            raise _untraceable(f"method {name} of arrays", help, MissingMethodError)
        raise AttributeError(f"traced arrays have no attribute {name!r}")

    def __pos__(self) -> Array:
        return self.copy()

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __pow__(self, other: Any) -> Any:
        whole = isinstance(other, int) and not isinstance(other, bool) and 1 <= other <= 16
        return _power(self, other) if whole else _operator("pow")(self, other)

    def __neg__(self) -> Array:
        return self.apply("neg", self)

    def __abs__(self) -> Array:
        return self.apply("abs", self)

    def __invert__(self) -> Array:
        return self.apply("not", self)

    def __matmul__(self, other: Any) -> Any:
        from tessera.graph.functions import matmul

        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        from tessera.graph.functions import matmul

        return matmul(other, self)

    def __getitem__(self, key: Any) -> Array:
        from tessera.graph.functions import indexed

        found = indexed(self, key)
        found.is_weak = self.is_weak
        return found

    def __len__(self) -> int:
        return self.shape[0].__index__()

    def __iter__(self) -> Any:
        if not self.ndim:
            raise TypeError("an array without dimensions has no elements to go through")
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> NoReturn:
        raise _needed("`if`, `while`, `and` or `not`")

    def __float__(self) -> NoReturn:
        raise _needed("float()")

    def __int__(self) -> NoReturn:
        raise _needed("int()")

    __index__ = __int__

    def __format__(self, spec: str) -> str:
        if spec:
            raise _needed("a format")
        return repr(self)

    def __array__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise _needed("a NumPy function that ts.jit has not, or np.asarray,")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from tessera.graph.dispatch import call_ufunc

        return call_ufunc(self.trace, ufunc, method, inputs, options)

    def __array_function__(self, function: Any, _types: Any, args: Any, kwargs: Any) -> Any:
        from tessera.graph.dispatch import call_function

        return call_function(self.trace, function, args, kwargs)

    def astype(self, dtype: Any) -> Array:
        """Return the elements in another dtype, Tessera's or NumPy's."""
        with self.trace.at_caller() as writer:
            return Array(self.trace, writer.cast(self.ssa, dtype_of(dtype)))

    def copy(self) -> Array:
        """Return an array of its own with the same elements."""
        return cast(Array, np.copy(cast(Any, self)))

    def reshape(self, *shape: Any) -> Array:
        """Return the elements, in row-major order, as another shape; one size may be -1."""
        from tessera.graph.functions import reshape

        return reshape(self, shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)

    def transpose(self, *axes: Any) -> Array:
        """Return the array with its dimensions permuted, by default in the opposite order."""
        from tessera.graph.functions import transpose

        return transpose(self, axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes or None)

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
        """Return the sum along dimensions."""
        return cast(Array, np.sum(cast(Any, self), axis=axis, dtype=dtype, keepdims=keepdims))

    def mean(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
        """Return the mean along dimensions."""
        return cast(Array, np.mean(cast(Any, self), axis=axis, dtype=dtype, keepdims=keepdims))

    def max(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Return the largest elements along dimensions."""
        return cast(Array, np.max(cast(Any, self), axis=axis, keepdims=keepdims))

    def min(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Return the smallest elements along dimensions."""
        return cast(Array, np.min(cast(Any, self), axis=axis, keepdims=keepdims))

    def prod(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
        """Return the product along dimensions."""
        return cast(Array, np.prod(cast(Any, self), axis=axis, dtype=dtype, keepdims=keepdims))

    def var(self, axis: Any = None, dtype: Any = None, ddof: int = 0, keepdims: bool = False) -> Array:
        """Return the variance along dimensions."""
        return cast(Array, np.var(cast(Any, self), axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims))

    def std(self, axis: Any = None, dtype: Any = None, ddof: int = 0, keepdims: bool = False) -> Array:
        """Return the standard deviation along dimensions."""
        return cast(Array, np.std(cast(Any, self), axis=axis, dtype=dtype, ddof=ddof, keepdims=keepdims))

    def any(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Return whether any element along dimensions is true."""
        return cast(Array, np.any(cast(Any, self), axis=axis, keepdims=keepdims))

    def all(self, axis: Any = None, keepdims: bool = False) -> Array:
        """Return whether all elements along dimensions are true."""
        return cast(Array, np.all(cast(Any, self), axis=axis, keepdims=keepdims))

    def clip(self, min: Any = None, max: Any = None) -> Array:
        """Return the elements between two bounds."""
        return cast(Array, np.clip(cast(Any, self), min, max))

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """Return the array with two dimensions exchanged."""
        return cast(Array, np.swapaxes(cast(Any, self), axis1, axis2))

    def squeeze(self, axis: Any = None) -> Array:
        """Return the array without dimensions of one element."""
        return cast(Array, np.squeeze(cast(Any, self), axis))

    def ravel(self) -> Array:
        """Return the elements, in row-major order, along one dimension."""
        return self.reshape(-1)

    def flatten(self) -> Array:
        """Return the elements, in row-major order, along one dimension of an array of its own."""
        return self.reshape(-1).copy()

    def dot(self, other: Any) -> Array:
        """Return the product with a matrix or vector."""
        return cast(Array, np.dot(cast(Any, self), other))

    def take(self, indices: Any, axis: Any = None) -> Array:
        """Return elements, or slices along a dimension, at places."""
        return cast(Array, np.take(cast(Any, self), indices, axis))

    def __repr__(self) -> str:
        type_ = array_type(self.ssa)
        return f"<traced {type_.dtype}[{', '.join(map(str, type_.dims))}]>"


def _power(base: Array, exponent: int) -> Array:
    """Return a power by products."""
    half = base if exponent == 1 else _power(base, exponent // 2)
    if exponent == 1:
        return base
    square = half * half
    return square * base if exponent % 2 else square


def dtype_of(dtype: Any) -> DType:
    """Return a dtype, Tessera's or NumPy's.

    Raises:
        TypeMismatchError: `unknown-dtype`.
    """
    if isinstance(dtype, DType):
        return dtype
    try:
        found = from_numpy(np.dtype(dtype))
    except TypeError:
        found = None
    if found is None:
        raise TypeMismatchError(
            f"{shown(dtype)} is no dtype", code="unknown-dtype", help="such as ts.bf16 or np.float32"
        )
    return found
