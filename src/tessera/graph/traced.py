"""What a traced function computes with: arrays and sizes whose operators append to a graph."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from threading import get_ident
from typing import Any, NoReturn, cast

import numpy as np
from xdsl.ir import BlockArgument, SSAValue

from tessera.errors import CallError, LanguageError, TesseraError, TypeMismatchError, caller_location, shown
from tessera.graph.floats import Number
from tessera.graph.sizes import COMPARE, Size, size
from tessera.ir.graph.types import ArrayType, array_type, dims_of
from tessera.ir.graph.views import memory_of
from tessera.ir.graph.writer import GraphWriter
from tessera.ir.locations import to_loc
from tessera.numerics.dtypes import DType, f32, f64, from_numpy, i64
from tessera.ops import arrays
from tessera.ops.traced import Traced
from tessera.runtime.device import Device
from tessera.target.dims import Dim

_COUNT = count()


class LeakedArrayError(LanguageError):
    """Says that an array of one tracing is used outside of it.

    Args:
        tracing: the array's; of two that are going on the one around the other.
    """

    def __init__(self, tracing: Trace) -> None:
        super().__init__(
            "an array of a traced function is used outside of it",
            code="leaked-array",
            location=caller_location(),
            help="return it, or pass it as an argument: it stands for an array only while its function is traced",
        )
        self.tracing = tracing


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
        self.changes: list[tuple[weakref.ref[Memory], SSAValue]] = []
        """What arrays were before each of their changes, in order."""
        self.is_over = False
        """Whether the function has returned: what its arrays stood for is not there any more."""
        self.number = next(_COUNT)
        """How many functions were traced before."""
        self._thread = get_ident()

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

    @property
    def is_going_on(self) -> bool:
        """Whether this thread is tracing it."""
        return not self.is_over and self._thread == get_ident()

    def check_own(self, value: Array | Number) -> None:
        """Check that an array stands for one of this tracing.

        Raises:
            LeakedArrayError: `leaked-array`.
        """
        if value.tracing is not self or self.is_over:
            raise LeakedArrayError(min((self, value.tracing), key=lambda one: (one.is_going_on, one.number)))

    @contextmanager
    def as_of(self, count: int) -> Generator[None]:
        """Let arrays be what they were after so many changes; what changes inside is forgotten."""
        end, targets = len(self.changes), dict(self.targets)
        later = [(memory, memory.now) for made, _ in self.changes[count:] if (memory := made()) is not None]
        self._undo(count)
        try:
            yield
        finally:
            self._undo(end)
            del self.changes[end:]
            self.targets = targets
            for memory, value in later:
                memory.now = value

    def _undo(self, count: int) -> None:
        for made, value in reversed(self.changes[count:]):
            memory = made()
            if memory is not None:
                memory.now = value

    @contextmanager
    def at_caller(self) -> Any:
        """Give the user's line to what is written and raised inside."""
        where = caller_location()
        if self.is_over:
            raise LeakedArrayError(self)
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
        if isinstance(value, Array | Number):
            self.check_own(value)
            return self.writer.cast(value.ssa, f32) if isinstance(value, Number) and value.is_weak else value.ssa
        if isinstance(value, Size):
            return self.writer.size(value.dim, _INDEX)
        if isinstance(value, bool | int | float):
            return value
        number: Any = self._listed(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else value
        if isinstance(number, Array):
            return number.ssa
        if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not number.shape):
            found = from_numpy(number.dtype)
            if found is not None:
                return self.writer.full(number.item(), found)
        if hasattr(number, "shape") and hasattr(number, "dtype"):
            return self.constant(number)
        raise TypeMismatchError(
            f"{shown(number)} is no array or number", code="not-a-value", help="give an array, or a Python number"
        )

    def _listed(self, values: Sequence[Any]) -> Any:
        """Return what a list of numbers or arrays is as an array."""
        from tessera.graph.functions import is_traced, stack

        try:
            return stack([self.array(one) for one in values]) if is_traced(values) else np.asarray(values)
        except ValueError:  # rows of different lengths
            return values

    def operands(self, values: Sequence[Any]) -> list[Any]:
        """Return values as operands of one op: what is made of Python's floats alone takes the dtype of the others."""
        if any(isinstance(value, Size) for value in values):
            values = self._with_sizes(values)
        if not any(map(_is_weak, values)):
            return list(map(self.operand, values))
        found = [0.0 if _is_weak(value) else self.operand(value) for value in values]
        dtype = self.writer.common(found) if any(isinstance(one, SSAValue) for one in found) else f64
        pairs = zip(values, found, strict=True)
        return [self.writer.cast(value.ssa, dtype) if _is_weak(value) else one for value, one in pairs]

    def _with_sizes(self, values: Sequence[Any]) -> list[Any]:
        """Return operands with sizes as arrays of the dtype that a number would have in their place."""
        others = [1 if isinstance(value, Size) else value for value in values]
        dtype = self.writer.common([*self.operands(others), 1])
        dtype = _INDEX if dtype.kind == "bool" else dtype
        return [
            Array(self, self.writer.size(value.dim, dtype)) if isinstance(value, Size) else value for value in values
        ]

    def elementwise(self, fn: str, values: Sequence[Any], condition: Sequence[Any] = ()) -> Array:
        """Return a function of arrays and numbers.

        Args:
            fn: its name.
            values: what is promoted to one dtype; of floats alone that is f64, as long as no array takes part.
            condition: what comes before them.
        """
        weak = all(_is_weak(value) or isinstance(value, bool | int | float) for value in values)
        weak = weak and any(_is_weak(value) or isinstance(value, float) for value in values)
        given = self.operands(values)
        dtype = _wide_enough(given) if fn in _COMPARISONS else None
        fn = _of_truths(fn, given)
        found = self.writer.apply(fn, *map(self.operand, condition), *given, dtype=f64 if weak else dtype)
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
        """Return a value as an array of the graph; a float is f64, and takes the dtype of arrays beside it."""
        if isinstance(value, Array | Number):
            self.check_own(value)
            return value if isinstance(value, Array) else Array(self, value.ssa, is_weak=value.is_weak)
        if isinstance(value, float):
            return Array(self, self.writer.full(value, f64), is_weak=True)
        found = self.operand(value)
        return Array(self, self.writer.as_array(found, self.writer.common([found])))

    def pin(self, sources: frozenset[int | Dim]) -> None:
        """Note that a value is needed that follows from arguments, by number, and sizes: others are traced anew."""
        for source in sources:
            if isinstance(source, int):
                self.pinned.add(source)
                continue
            value = source.value(self.writer.hints)
            assert value is not None, "sizes are known at a call"
            self.decide("eq", source, Dim((), value))

    def decide(self, kind: str, left: Dim, right: Dim) -> bool:
        """Return how two sizes compare; every call of the graph has to give the same."""
        values = left.value(self.writer.hints), right.value(self.writer.hints)
        found = bool(COMPARE[kind](cast(int, values[0]), cast(int, values[1])))
        if not (left - right).is_static:
            self.decided[kind, left, right] = found
        return found


_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_OF_TRUTHS = {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}
"""What NumPy's functions of numbers are of truth values alone."""


def _of_truths(fn: str, given: Sequence[Any]) -> str:
    """Return the function that one of numbers is for its operands.

    Raises:
        TypeMismatchError: `dtype-mismatch` for a difference of truth values.
    """
    kinds = {type(one).__name__ if isinstance(one, bool | int | float) else array_type(one).dtype.kind for one in given}
    if kinds != {"bool"}:
        return fn
    if fn in ("sub", "neg"):
        raise TypeMismatchError(
            "truth values are subtracted",
            code="dtype-mismatch",
            help="x ^ y and ~x are of truth values; or cast to a number first",
        )
    return _OF_TRUTHS.get(fn, fn)


def _wide_enough(given: Sequence[Any]) -> DType | None:
    """Return the dtype in which integers are compared with a number that theirs does not hold; None for their own."""
    dtypes = [array_type(one).dtype for one in given if not isinstance(one, int | float)]
    numbers = [one for one in given if isinstance(one, int)]
    if not all(dtype.is_int and dtype.bits < 64 for dtype in dtypes):
        return None
    outside = any(not -(2 ** (dtype.bits - 1)) <= one < 2**dtype.bits for dtype in dtypes for one in numbers)
    negative = any(dtype.kind == "uint" and one < 0 for dtype in dtypes for one in numbers)
    return i64 if outside or negative else None


def _is_weak(value: Any) -> bool:
    """Return whether a value of the graph is made of Python's floats alone."""
    return isinstance(value, Array | Number) and value.is_weak


_INDEX = i64


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


_CHOOSE = "choose between arrays with np.where; or compute it outside of ts.jit"


def _needed(what: str, help: str = _CHOOSE, kind: type[LanguageError] = LanguageError) -> LanguageError:
    return kind(
        f"{what} needs the value of a traced array",
        code="value-needed",
        location=caller_location(),
        help=help,
    )


def _operator(fn: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def apply(self: Array, other: Any) -> Any:
        if other is None or isinstance(other, str | dict):
            return NotImplemented
        return self.apply(fn, *((other, self) if swapped else (self, other)))

    return apply


class Memory:
    """The elements of an array, which all of its names share: views are made of them again after they have changed.

    Args:
        ssa: their value in the graph.
        target: the number of the argument that they are, which ops that change arrays write to; None for all others.
        whole: what they are a view of, None for an array of its own.
        make: makes their value of the whole; None where nothing says whether NumPy's would be a view or a copy.
        back: gives what the whole is, with the part that the view is changed; takes the whole and the view. None where
            the view cannot be changed, or may be a copy.
    """

    __slots__ = ("__weakref__", "_make", "_taken", "back", "now", "target", "users", "whole")

    def __init__(
        self,
        ssa: SSAValue,
        target: int | None = None,
        whole: Memory | None = None,
        make: Callable[[Array], SSAValue] | None = None,
        back: Callable[[Array, Array], Array] | None = None,
    ) -> None:
        self.now, self.target, self.whole, self._make, self.back = ssa, target, whole, make, back
        self.users: weakref.WeakValueDictionary[int, Array | Memory] = weakref.WeakValueDictionary()
        """Arrays that stand for it, and views."""
        self._taken: SSAValue | None = None
        if whole is not None:
            whole.users[id(self)] = self
            self._taken = whole.now

    def ssa(self, trace: Trace) -> SSAValue:
        """Return the value as it is now.

        Raises:
            CallError: `written-argument` for what may be a view of what has changed, or a copy.
        """
        if self.whole is not None and self.whole.ssa(trace) is not self._taken:
            if self._make is None:
                raise CallError(
                    "another shape of an array is read that has changed since, which is a view or a copy",
                    code="written-argument",
                    location=caller_location(),
                    help="take it where it is read, or a copy before the change: np.copy(x.reshape(...))",
                )
            self.now = self._make(Array(trace, self.whole))
            self._taken = self.whole.now
        return self.now

    def put(self, trace: Trace, ssa: SSAValue) -> None:
        """Let the elements be others, also those of what they are a view of.

        Raises:
            CallError: `written-argument` for what may be a view, or a copy.
        """
        trace.changes.append((weakref.ref(self), self.now))
        self.now = ssa
        if self.target is not None:
            trace.targets[self.target] = ssa
        whole = self.whole
        if whole is None:
            return
        if not whole.is_seen(beside=self):
            self.whole = None
            return
        if self.back is None:
            raise CallError(
                "another shape of a part or a transpose is changed, which is a view or a copy",
                code="written-argument",
                location=caller_location(),
                help=_UNCHANGED,
            )
        self._taken = whole.ssa(trace)
        found = self.back(Array(trace, whole), Array(trace, self))
        whole.put(trace, trace.writer.reshape(found.ssa, dims_of(self._taken)))
        self._taken = whole.now

    def is_seen(self, beside: Memory) -> bool:
        """Return whether anything but one of its views reads the elements."""
        if self.target is not None or any(user is not beside for user in self.users.values()):
            return True
        return self.whole is not None and self.whole.is_seen(beside=self)

    @property
    def is_argument(self) -> bool:
        """Whether it is an argument's, or a part of one where NumPy's array would be, too."""
        return self.target is not None or (self.whole is not None and self.whole.is_argument)


class Array(Traced):
    """An array of a traced function. NumPy's functions take it, and it has their operators and methods.

    Args:
        trace: the tracing.
        value: its value in the graph, another one once it has changed; or the elements that it shares.
        is_own: whether it is memory of its own in which nothing is yet but one number.
        target: the number of the argument that it is.
        is_weak: whether it is made of Python's floats alone: beside other arrays it takes their dtype.
    """

    __slots__ = ("__weakref__", "is_own", "is_weak", "memory", "tracing")
    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __init__(
        self,
        trace: Trace,
        value: SSAValue | Memory,
        is_own: bool = False,
        target: int | None = None,
        is_weak: bool = False,
    ) -> None:
        self.tracing, self.is_own, self.is_weak = trace, is_own, is_weak
        self.memory = value if isinstance(value, Memory) else Memory(value, target)
        self.memory.users[id(self)] = self

    @property
    def ssa(self) -> SSAValue:
        """Its value in the graph as it is now."""
        return self.memory.ssa(self.tracing)

    @property
    def target(self) -> int | None:
        """The number of the argument that it is, which ops that change arrays write to; None for all others."""
        return self.memory.target

    @property
    def is_view(self) -> bool:
        """Whether it is an argument, or a part of one where NumPy's array would be, too."""
        return self.memory.is_argument

    def viewed(
        self,
        make: Callable[[Array], SSAValue],
        back: Callable[[Array, Array], Array] | None = None,
        may_be_copy: bool = False,
    ) -> Array:
        """Return a view of it.

        Args:
            make: makes the view's value of this array.
            back: gives what this array is, with the part that the view is changed; takes this array, and the view. None
                where the view cannot be changed.
            may_be_copy: whether nothing says whether NumPy's would be a view.
        """
        again = None if may_be_copy else make
        memory = Memory(make(self), whole=self.memory, make=again, back=None if may_be_copy else back)
        return Array(self.tracing, memory, is_weak=self.is_weak)

    @property
    def is_part(self) -> bool:
        """Whether it is a view of an array of the function."""
        return self.memory.whole is not None

    @property
    def back(self) -> Callable[[Array, Array], Array] | None:
        """What gives the array that it is a view of, with the part that it is changed."""
        return self.memory.back

    def given_back(self) -> SSAValue:
        """Return its value as a result: in memory of its own where NumPy's array would be."""
        shares = not self.is_view and isinstance(memory_of(self.ssa), BlockArgument)
        return self.tracing.writer.copy(self.ssa) if shares else self.ssa

    @property
    def shape(self) -> tuple[Any, ...]:
        """The sizes: numbers, or sizes that differ from call to call."""
        return tuple(size(self.tracing, dim) for dim in dims_of(self.ssa))

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
        return self.tracing.depth > 0

    def join(self, value: Any) -> Any:
        """Return an array of the program around as one of the graph; anything else as it is."""
        return self.tracing.array(value) if arrays.is_array(value) else value

    def filled(self, shape: Sequence[Any], dtype: DType) -> Array:
        """Return zeros beside the array."""
        writer = self.tracing.writer
        zero = writer.cast(writer.full(0.0, f32), dtype) if dtype.is_float else writer.full(0, dtype)
        return Array(self.tracing, writer.broadcast_to(zero, dims_from(shape)))

    def copied(self) -> Array:
        """Return the array with elements that follow one another."""
        return Array(self.tracing, self.tracing.writer.copy(self.ssa))

    def call(self, step: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the results of a step of the library."""
        from tessera.graph.steps import call_step

        return call_step(self.tracing, step, arguments)

    def change(self, name: str, run: Any, changed: Sequence[Any], read: Sequence[Any], made: Sequence[Any]) -> Any:
        """Return the results of what changes arrays, this one or another of its graph among them."""
        from tessera.graph.changes import call_changing

        return call_changing(self.tracing, name, run, changed, read, made)

    @property
    def size(self) -> Any:
        """The number of elements."""
        return size(self.tracing, self.tracing.writer.count(self.ssa, range(self.ndim)))

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.dtype.itemsize

    @property
    def real(self) -> Array:
        """The array itself: there are no complex numbers."""
        return self

    @property
    def mT(self) -> Array:
        """The array with its last two dimensions exchanged."""
        return self.swapaxes(-1, -2)

    @property
    def T(self) -> Array:
        """The array with its dimensions in the opposite order."""
        return self.transpose()

    def apply(self, fn: str, *values: Any) -> Array:
        """Return an elementwise function of arrays and numbers, this one among them."""
        with self.tracing.at_caller():
            return self.tracing.elementwise(fn, values)

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
    __iadd__, __isub__ = _in_place("add"), _in_place("sub")
    __imul__, __itruediv__ = _in_place("mul"), _in_place("div")
    __ifloordiv__, __imod__ = _in_place("floordiv"), _in_place("mod")
    __iand__, __ior__, __ixor__ = _in_place("and"), _in_place("or"), _in_place("xor")
    __ilshift__, __irshift__ = _in_place("shl"), _in_place("shr")

    def become(self, found: Array) -> Array:
        """Return this array with other elements, as `x += y` changes NumPy's arrays: all its names stand for them.

        An argument is written when the function ends. Inside of what is differentiated it stays, and the result is new.

        Raises:
            CallError: `written-argument` for what may be a view of an argument, or a copy.
            TypeMismatchError: `shape-mismatch` or `dtype-mismatch` for elements that it has no room for.
        """
        trace, own, other = self.tracing, array_type(self.ssa), array_type(found.ssa)
        if trace.depth and self.is_view:
            return found
        dims = dims_of(self.ssa), dims_of(found.ssa)
        if own.rank != other.rank or not all(map(trace.writer.same, *dims)):
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
            self.put(writer.cast(writer.reshape(found.ssa, dims[0]), own.dtype))
        return self

    def put(self, ssa: SSAValue) -> None:
        """Let the array, and what it is a view of, have other elements of its shape and dtype."""
        self.is_own = False
        self.memory.put(self.tracing, ssa)

    def __setitem__(self, key: Any, value: Any) -> None:
        from tessera.graph.assigning import assign

        assign(self, key, value)

    def __getattr__(self, name: str) -> Any:
        """Return a method that is one of NumPy's functions; refuse those that are not here."""
        from tessera.graph.compositions import METHODS

        if name in METHODS:
            return partial(METHODS[name], self)
        if name in ("item", "tolist", "tobytes"):
            raise _needed(f".{name}()", kind=MissingMethodError)
        if not name.startswith("_") and callable(getattr(np.ndarray, name, None)):
            help = f"see whether np.{name} is there (docs/graphs.md)"
            raise _untraceable(f"method {name} of arrays", help, MissingMethodError)
        raise AttributeError(f"traced arrays have no attribute {name!r}")

    def __pos__(self) -> Array:
        return self.copy()

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __pow__(self, other: Any) -> Any:
        return NotImplemented if other is None else np.power(cast(Any, self), other)

    def __rpow__(self, other: Any) -> Any:
        return np.power(other, cast(Any, self))

    def __ipow__(self, other: Any) -> Any:
        return self.become(self**other)

    def __imatmul__(self, other: Any) -> Any:
        return self.become(self @ other)

    def __round__(self, digits: int | None = None) -> Any:
        return cast(Any, np).round(self, digits or 0)

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
        raise _needed(
            "np.asarray, or what NumPy computes of lists and of its own arrays,",
            "np.stack makes one array of several, np.take(table, i) reads a table; or compute it outside of ts.jit",
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from tessera.graph.dispatch import call_ufunc

        return call_ufunc(self.tracing, ufunc, method, inputs, options)

    def __array_function__(self, function: Any, _types: Any, args: Any, kwargs: Any) -> Any:
        from tessera.graph.dispatch import call_function

        return call_function(self.tracing, function, args, kwargs)

    def astype(self, dtype: Any) -> Array:
        """Return the elements in another dtype, Tessera's or NumPy's."""
        with self.tracing.at_caller() as writer:
            return Array(self.tracing, writer.cast(self.ssa, dtype_of(dtype)))

    def copy(self) -> Array:
        """Return an array of its own with the same elements."""
        return cast(Array, np.copy(cast(Any, self)))

    def reshape(self, *shape: Any, order: Any = "C", copy: Any = None) -> Array:
        """Return the elements, in row-major order, as another shape; one size may be -1."""
        from tessera.graph.functions import reshape

        return reshape(self, shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape, order)

    def transpose(self, *axes: Any) -> Array:
        """Return the array with its dimensions permuted, by default in the opposite order."""
        from tessera.graph.functions import transpose

        return transpose(self, axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes or None)

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """Return the array with two dimensions exchanged."""
        return cast(Array, np.swapaxes(cast(Any, self), axis1, axis2))

    def squeeze(self, axis: Any = None) -> Array:
        """Return the array without dimensions of one element."""
        return cast(Array, np.squeeze(cast(Any, self), axis))

    def ravel(self, order: Any = "C") -> Array:
        """Return the elements, in row-major order, along one dimension."""
        return self.reshape(-1, order=order)

    def flatten(self, order: Any = "C") -> Array:
        """Return the elements, in row-major order, along one dimension of an array of its own."""
        return self.reshape(-1, order=order).copy()

    def dot(self, other: Any) -> Array:
        """Return the product with a matrix or vector."""
        return cast(Array, np.dot(cast(Any, self), other))

    def sort(self, axis: int = -1) -> None:
        """Put the elements along a dimension in order, in place."""
        self.become(cast(Array, np.sort(cast(Any, self), axis=axis)))

    def fill(self, value: Any) -> None:
        """Set all elements to a number."""
        self[...] = value

    def take(self, indices: Any, axis: Any = None, out: Any = None, mode: Any = "raise") -> Array:
        """Return elements, or slices along a dimension, at places."""
        return cast(Array, np.take(cast(Any, self), indices, axis, out, mode))

    def __repr__(self) -> str:
        type_ = array_type(self.ssa)
        return f"<traced {type_.dtype}[{', '.join(map(str, type_.dims))}]>"


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
