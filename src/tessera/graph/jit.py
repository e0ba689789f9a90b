"""`ts.jit`: a function of whole arrays, traced at its first call and for what its graphs do not serve."""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Sequence
from operator import is_
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

import numpy as np

from tessera.data import dataclass
from tessera.driver.compile import check_known
from tessera.driver.traced import TRACERS
from tessera.errors import CallError, LanguageError, caller_location, shown
from tessera.frontend.annotations import OneType
from tessera.frontend.exact import exact
from tessera.graph.changes import Span, check_apart, spans_of, write_back
from tessera.graph.constants import as_tensor, beside, shares_memory
from tessera.graph.floats import Number, float_type, is_float
from tessera.graph.kept import cut
from tessera.graph.kernels import call_kernel
from tessera.graph.program import Program
from tessera.graph.sizes import COMPARE
from tessera.graph.traced import Array, LeakedArrayError, Trace
from tessera.graph.trees import Outline, flatten, unflatten
from tessera.ir.graph.types import ArrayType
from tessera.ops import arrays
from tessera.runtime import asarray
from tessera.runtime.arguments import common_device
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView
from tessera.target.dims import Dim, solved

if TYPE_CHECKING:
    from tessera.graph.compiled import CompiledGraph
    from tessera.graph.explained import GraphExplanation

P = ParamSpec("P")
R = TypeVar("R")

TRACERS[Array] = call_kernel


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A function traced for one kind of call.

    Args:
        program: its graph.
        dims: the sizes of its arguments.
        equal: pairs of sizes that have to be equal.
        decided: what comparisons of sizes have to give.
        pinned: arguments by place, floats that have to be these.
        constants: arrays of the program around, which follow the arguments.
        are_ready: whether those are what runs take; others are copied at each call.
        outline: how results are nested.
        results: for each the number of the graph's result, or what it is.
        device: where its arrays are.
        changed: numbers of the arguments that it writes to.
    """

    program: Program
    dims: tuple[tuple[Dim, ...], ...]
    equal: tuple[tuple[Dim, Dim], ...]
    decided: tuple[tuple[str, Dim, Dim, bool], ...]
    pinned: tuple[tuple[int, Any], ...]
    constants: tuple[Any, ...]
    are_ready: bool
    outline: Outline
    results: tuple[tuple[bool, Any], ...]
    device: Device
    changed: tuple[int, ...]

    def takes(self, leaves: Sequence[Any]) -> bool:
        """Return whether the floats of a call are those that the graph is for."""
        return all(exact(float(leaves[at])) == value for at, value in self.pinned)

    def beside(self, like: Any) -> Sequence[Any]:
        """Return the arrays of the program around as they are now, beside one on the device."""
        return self.constants if self.are_ready else [beside(one, like, self.device) for one in self.constants]

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, int] | None:
        """Return the sizes of symbols in a call, None where the graph is not for it."""
        pairs = [pair for dims, shape in zip(self.dims, shapes, strict=True) for pair in zip(dims, shape, strict=True)]
        found = solved(pairs)
        if any(dim.value(found) != size for dim, size in pairs):
            return None
        if any(left.value(found) != right.value(found) for left, right in self.equal):
            return None
        for kind, left, right, wanted in self.decided:
            if COMPARE[kind](cast(int, left.value(found)), cast(int, right.value(found))) != wanted:
                return None
        return found


class Jit(Generic[P, R]):
    """A function that is traced. Call it like the function.

    Args:
        function: the function.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._entries: dict[Any, list[Entry]] = {}
        self._known: dict[Any, tuple[Entry, dict[str, int], list[Span]]] = {}
        self._tracing = threading.RLock()
        self._last: tuple[Entry, dict[str, int]] | None = None
        self._methods: Jit[..., Any] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function.

        Args:
            *args: arrays, numbers, and tuples, lists, dictionaries and objects of them. Floats may differ from call to
                call, where nothing asks for their value; for another integer, and anything else that is no array, the
                function is traced anew.
            **kwargs: the same by name.

        Returns:
            What the function returns, with new arrays, of the library of the first argument.

        Raises:
            TesseraError: what the function does that cannot be traced, and what the compiler says.
        """
        leaves, outline = flatten((args, kwargs))
        if any(isinstance(leaf, Array | Number) for leaf in leaves):
            return self._function(*args, **kwargs)
        places, whole, statics = self._arrays(leaves)
        given = [whole[at] for at in places]
        read = [arrays.reader(array, "argument").read(array) for array in given]
        key = outline, statics, tuple((traits, pointer & 15) for pointer, traits, _ in read)
        found = self._known.get(key)
        if found is None or not found[0].takes(leaves):
            try:
                entry, sizes = self._find(leaves, whole, outline, places, statics)
            except LeakedArrayError as error:
                if not error.tracing.is_going_on:
                    raise
                return self._inside(error.tracing, leaves, outline)
            every = [*given, *entry.beside(given[0])]
            found = entry, sizes, spans_of(every, entry.changed) if entry.changed else []
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        entry, sizes, spans = found
        self._last = entry, sizes
        constants = entry.beside(given[0])
        starts = [pointer for pointer, _, _ in read]
        starts += [arrays.start(one, "a constant") for one in constants]
        if spans:
            check_apart(starts, spans, entry.changed)
        results = entry.program.run([*given, *constants], sizes, key, starts)
        made = (results[value] if is_array else value for is_array, value in entry.results)
        return cast(R, unflatten(entry.outline, made))

    def _inside(self, trace: Trace, leaves: Sequence[Any], outline: Outline) -> R:
        """Run the function as a part of one that is traced around it, of which it reads arrays.

        Raises:
            CallError: `written-argument` where it changes an array that it is called with.
        """
        joined = [trace.array(leaf) if arrays.is_array(leaf) else leaf for leaf in leaves]
        before = [(one, one.ssa) for one in joined if isinstance(one, Array)]
        args, kwargs = unflatten(outline, iter(joined))
        function: Callable[..., R] = self._function
        found = function(*args, **kwargs)
        if any(one.ssa is not ssa for one, ssa in before):
            raise CallError(
                f"{self._name} changes an array of the program around ts.jit",
                code="written-argument",
                location=caller_location(),
                help="pass it as an argument to the outer function, or change a copy: np.copy(x)",
            )
        return found

    def _arrays(self, leaves: Sequence[Any]) -> tuple[list[int], list[Any], Any]:
        """Return the places of arrays among the arguments, the arguments with floats as arrays, and what else counts.

        Raises:
            CallError: `not-an-array`, `no-gradient`.
        """
        places, floats = list[int](), list[int]()
        for at, leaf in enumerate(leaves):
            if is_float(leaf):
                floats.append(at)
            elif arrays.is_array(leaf):
                places.append(at)
        if not places and not floats:
            raise CallError(
                f"{self._name} is called without an array",
                code="not-an-array",
                location=caller_location(),
                help="pass one, or a float",
            )
        first = leaves[places[0]] if places else np.array(0.0)
        if floats:
            places = sorted([*places, *floats])
        whole = list(leaves)
        if arrays.is_torch(first):
            for at in places[1:]:
                whole[at] = as_tensor(whole[at], first)
        for at in floats:
            whole[at] = _number(leaves[at], first)
        if "torch" in sys.modules:
            for at in places:
                _check_no_gradient(whole[at])
        apart = {*places}
        statics = tuple(floats), tuple(exact(leaf) for at, leaf in enumerate(leaves) if at not in apart)
        return places, whole, statics

    def compile(
        self, /, *args: Any, target: str | None = None, dump: Sequence[str] = (), **kwargs: Any
    ) -> CompiledGraph:
        """Compile what a call would run, without running it; no device is needed.

        Contiguous, 16-byte aligned arrays are assumed, as `ts.compile` does.

        Args:
            *args: the arguments of a call; those that are called `target` or `dump` are passed by place.
            target: what to compile for, as for `ts.compile`.
            dump: stages to keep: `graph` as it is traced, `groups` into which it is cut, and of the kernels what
                `ts.compile` keeps: `tirh`, `tirt`, `ll`; on GPUs `ptx`, `cubin`; on CPUs `asm`.
            **kwargs: the same by name.

        Returns:
            The kernels' artefacts and the dumps. What is called beside them, such as products, is not compiled.

        Raises:
            CallError: `unknown-dump`, `no-such-level`.
            TesseraError: as a call, and as `ts.compile`.
        """
        from tessera.graph.compiled import GRAPH_DUMPS, compiled_graph

        names = check_known(dump, GRAPH_DUMPS)
        leaves, outline = flatten((args, kwargs))
        places, whole, statics = self._arrays(leaves)
        entry, sizes = self._find(leaves, whole, outline, places, statics)
        program = entry.program
        return compiled_graph(program.module, program.plan.steps, sizes, target, names)

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", "the function")

    def _find(
        self, leaves: Sequence[Any], whole: Sequence[Any], outline: Outline, places: Sequence[int], statics: Any
    ) -> tuple[Entry, dict[str, int]]:
        """Return the graph that serves a call, traced if need be."""
        views = [arrays.view(whole[at], "an array") for at in places]
        common_device([f"array {number}" for number in range(len(views))], views)
        shapes = [view.shape for view in views]
        kind = outline, statics, tuple(map(_kind, views))
        with self._tracing:
            for entry in self._entries.get(kind, ()):
                sizes = entry.sizes(shapes) if entry.takes(leaves) else None
                if sizes is not None:
                    return entry, sizes
            entry = self._trace(leaves, outline, places, views, whole[places[0]])
            self._entries.setdefault(kind, []).append(entry)
            sizes = entry.sizes(shapes)
            assert sizes is not None, "a graph serves the call that it was traced for"
            return entry, sizes

    def _trace(
        self, leaves: Sequence[Any], outline: Outline, places: Sequence[int], views: Sequence[ArrayView], like: Any
    ) -> Entry:
        """Trace the function for arrays such as these."""
        names: dict[int, Dim] = {}
        dims = [tuple(_symbol(size, names) for size in view.shape) for view in views]
        hints = {str(dim): size for size, dim in names.items()}
        name = re.sub(r"\W+", "_", self._name).strip("_") or "graph"
        trace = Trace(
            name, [ArrayType.of(d, view.dtype) for d, view in zip(dims, views, strict=True)], hints, views[0].device
        )
        filled = list(leaves)
        for number, (at, argument) in enumerate(zip(places, list(trace.writer.arguments), strict=True)):
            if is_float(leaves[at]):
                filled[at] = Number(trace, argument, float(leaves[at]), frozenset([at]))
            else:
                filled[at] = Array(trace, argument, target=number)
        try:
            found, nested = self._traced(filled, outline)
            return self._entry(trace, found, nested, leaves, tuple(dims), views, like)
        finally:
            trace.is_over = True

    def _traced(self, filled: Sequence[Any], outline: Outline) -> tuple[list[Any], Outline]:
        """Return what the function gives of arrays that stand for its arguments.

        Raises:
            LanguageError: `not-traceable` where it changes a list, a dictionary or an object among them.
        """
        args, kwargs = unflatten(outline, iter(filled))
        function: Callable[..., Any] = self._function
        found = flatten(function(*args, **kwargs))
        if not _is_same(flatten((args, kwargs)), flatten(unflatten(outline, iter(filled)))):
            raise LanguageError(
                f"{self._name} changes a list, a dictionary or an object that it is called with, which would be lost",
                code="not-traceable",
                location=caller_location(),
                help="change a copy of it, such as dict(given), and return what is to be kept",
            )
        return found

    def _entry(
        self,
        trace: Trace,
        found: Sequence[Any],
        nested: Outline,
        leaves: Sequence[Any],
        dims: tuple[tuple[Dim, ...], ...],
        views: Sequence[ArrayView],
        like: Any,
    ) -> Entry:
        """Return a function that was traced, of results nested in some way."""
        for one in found:
            if isinstance(one, Array | Number):
                trace.check_own(one)
        values = [
            one.given_back() if isinstance(one, Array) else one.ssa for one in found if isinstance(one, Array | Number)
        ]
        numbers = iter(range(len(values)))
        results = tuple((True, next(numbers)) if isinstance(one, Array | Number) else (False, one) for one in found)
        constants = tuple(array for array, _ in trace.constants.values())
        ready = tuple(beside(array, like, trace.device) for array in constants)
        held = [arrays.view(array, "a constant") for array in ready]
        contiguous = [_lies(view) for view in (*views, *held)]
        values = write_back(trace, values)
        changing = trace.changing()
        program = Program(trace.writer.finish(values), trace.runs(), contiguous, trace.writer.hints, changing=changing)
        decided = tuple((*what, given) for what, given in trace.decided.items())
        pinned = tuple((at, exact(float(leaves[at]))) for at in sorted(trace.pinned))
        equal, changed = tuple(trace.writer.equal), tuple(sorted(trace.targets))
        device = trace.device
        are_ready = all(shares_memory(array, device) for array in constants) or not arrays.is_torch(like)
        facts = equal, decided, pinned, ready if are_ready else constants, are_ready, nested, results, device, changed
        return Entry(program, dims, *facts)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the method of an object; see `jit`."""
        return self if instance is None else Method(self, instance)

    def methods(self) -> Jit[..., Any]:
        """Return what a method runs: it takes the object's class and attributes in place of the object."""
        if self._methods is None:
            self._methods = Jit(_of_parts(self._function))
        return self._methods

    def graph(self) -> str:
        """Return the graph of the last call in its textual form, cut into the groups that are its kernels.

        Raises:
            CallError: `never-run`.
        """
        from tessera.ir.text import text_of

        return text_of(cut(self._ran()[0].program.module))

    def explain(self, html: str | PathLike[str] | None = None) -> GraphExplanation:
        """Return what the last call ran: its kernels and calls with what they read and write, and why they are apart.

        Args:
            html: where to write a page, too, that draws the graph as it was traced and as it runs.

        Raises:
            CallError: `never-run`.
        """
        entry, sizes = self._ran()
        found = entry.program.explain(sizes, entry.device)
        if html is not None:
            found.html(html)
        return found

    def _ran(self) -> tuple[Entry, dict[str, int]]:
        if self._last is None:
            raise CallError(f"{self._name} has not run yet", code="never-run", help="call it first")
        return self._last

    def __repr__(self) -> str:
        return f"<ts.jit {self._name}>"


def _of_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method as a function of the object's class and attributes."""

    @functools.wraps(function)
    def call(kind: type, attributes: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        made: Any = cast(Any, object).__new__(kind)
        held = cast("dict[str, Any]", made.__dict__)
        held.update(attributes)
        before = {name: flatten(value) for name, value in attributes.items()}
        found = function(made, *args, **kwargs)
        for name, value in held.items():
            if name not in before or not _is_same(flatten(value), before[name]):
                raise LanguageError(
                    f"{function.__name__} sets the attribute {name!r} of its object, which would be lost",
                    code="not-traceable",
                    location=caller_location(),
                    help="return what is to be kept, and set it outside",
                )
        return found

    return call


def _is_same(one: tuple[Sequence[Any], Outline], other: tuple[Sequence[Any], Outline]) -> bool:
    """Return whether two trees hold the same objects."""
    return one[1] == other[1] and all(map(is_, one[0], other[0]))


class Method:
    """A traced function as the method of an object.

    Args:
        function: the function.
        instance: the object.
    """

    def __init__(self, function: Jit[..., Any], instance: Any) -> None:
        functools.update_wrapper(cast(Any, self), cast(Any, function))
        self._function, self._instance = function, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method: arrays and floats that the object holds are arguments as others are."""
        if not hasattr(self._instance, "__dict__"):
            return self._function(self._instance, *args, **kwargs)
        return self._function.methods()(type(self._instance), vars(self._instance), *args, **kwargs)

    def graph(self) -> str:
        """Return the graph of the last call; see `Jit.graph`."""
        return self._function.methods().graph()

    def explain(self, html: str | PathLike[str] | None = None) -> GraphExplanation:
        """Return what the last call ran; see `Jit.explain`."""
        return self._function.methods().explain(html)

    def compile(
        self, /, *args: Any, target: str | None = None, dump: Sequence[str] = (), **kwargs: Any
    ) -> CompiledGraph:
        """Compile what a call would run, without running it; see `Jit.compile`."""
        instance = self._instance
        whole = self._function.methods()
        return whole.compile(type(instance), vars(instance), *args, target=target, dump=dump, **kwargs)


_MOST_KNOWN = 4096


def _number(value: Any, beside: Any) -> Any:
    """Return a float as an array beside another one."""
    kind = float_type(value)
    if arrays.is_torch(beside):
        return sys.modules["torch"].tensor(float(value), dtype=arrays.torch_dtypes()[kind.name], device=beside.device)
    found = np.array(value, kind.numpy())
    if isinstance(beside, np.ndarray):
        return found
    return asarray(found, kind, arrays.view(beside, "an array").device)


def _check_no_gradient(array: Any) -> None:
    """Refuse a tensor whose gradient would be lost.

    Raises:
        CallError: `no-gradient`.
    """
    if arrays.is_torch(array) and array.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise CallError(
            "PyTorch's gradients do not go through ts.jit",
            code="no-gradient",
            location=caller_location(),
            help='torch.compile(f, backend="tessera") has them; or pass x.detach() and use ts.grad',
        )


def _symbol(size: int, names: dict[int, Dim]) -> Dim:
    """Return a size of an argument: ones and zeros as they are, equal other sizes by one name."""
    if size < 2:
        return Dim((), size)
    return names.setdefault(size, Dim((f"s{len(names)}",)))


def _kind(view: ArrayView) -> Any:
    """Return what of an array a graph is made for."""
    ones = tuple(size if size < 2 else -1 for size in view.shape)
    return view.dtype.name, ones, view.device, _lies(view)


def _lies(view: ArrayView) -> bool:
    """Return whether an array's elements lie side by side, in order."""
    step = 1
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """Return a function of whole arrays that runs as few kernels.

    Args:
        function: computes with arrays by Python's operators, NumPy's functions, `ts.grad` and other such functions. It
            is traced, which is to say called with arrays that stand for any of their kind; what it prints or counts
            it does then only. `if` on a size is decided for each call, `if` on a value is refused.

    Returns:
        The function. It takes NumPy arrays and PyTorch tensors, in tuples, lists, dictionaries and objects too. Another
        size than before needs no tracing, other than one that was 0 or 1, or that decided an `if`. It may be the method
        of a class, whose object's attributes are arguments as others are; those that it sets are refused.

    Raises:
        CallError: `not-a-function`.
    """
    if not callable(function):
        raise CallError(
            f"ts.jit of {shown(cast(object, function))}",
            code="not-a-function",
            location=caller_location(),
            help="decorate a function",
        )
    if any(isinstance(annotation, OneType) for annotation in getattr(function, "__annotations__", {}).values()):
        raise CallError(
            f"ts.jit of {getattr(function, '__name__', 'a function')}, whose parameters are annotated as a kernel's",
            code="not-a-function",
            location=caller_location(),
            help="decorate a kernel with @ts.kernel; ts.jit takes functions of whole arrays",
        )
    return Jit(function)
