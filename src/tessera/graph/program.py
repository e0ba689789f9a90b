"""Runs graphs: groups as kernels, products and wide sums by the library, views by the library of the arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from tessera import ops
from tessera.data import dataclass
from tessera.driver import ahead
from tessera.driver.group_kernel import GroupKernel
from tessera.driver.launch import Launch, stream_source
from tessera.driver.settings import settings
from tessera.driver.variants import Wanted, destination_of
from tessera.entry.tables import NotDirect
from tessera.frontend.group.accesses import Access, Shape, row_major
from tessera.frontend.group.source import signature_of
from tessera.graph import products
from tessera.graph.ahead import compile_ahead
from tessera.graph.edges import Edges, Number
from tessera.graph.kept import graph_of, planned
from tessera.graph.overwriting import changed, write
from tessera.graph.pieces import Recording
from tessera.graph.plan import Applied, Called, Changed, Group, Multiplied, Output, Step, Written
from tessera.graph.products import BATCHES, OTHER_ARRAYS, SLOWER, Fused, Parted, Size, Together, together
from tessera.graph.recorded import Item, Launches, Roots, View, drop, is_recorded, record
from tessera.graph.replay import Replay
from tessera.graph.runs import Apply, Call, Run, Values
from tessera.ir.graph.types import dims_of
from tessera.numerics.profiles import current_profile
from tessera.ops import arrays, rows
from tessera.ops.forms import Form, Part, form_of, part_of
from tessera.ops.linalg.batches import in_one, plain
from tessera.ops.lookup.steps import BACKWARD
from tessera.ops.rules import RULES
from tessera.runtime.device import Device
from tessera.runtime.recording import Place
from tessera.runtime.views import ArrayView
from tessera.schedule.fuse.places import NONE
from tessera.target.dims import Dim, solved

if TYPE_CHECKING:
    from tessera.graph.explained import GraphExplanation

Sizes = Mapping[str, int]
Callee = Callable[..., Any]

_BASE = 1 << 44
"""Where arrays that a run makes are taken to lie when its kernels are chosen: apart from one another, and aligned."""

_MOST_BOUND = 1024
"""Kinds of calls that a graph remembers: one with ever new sizes must not grow without limit."""


_VIEWS = ("transpose", "reshape", "broadcast", "slice")
"""Kinds of steps without launches."""


class Program:
    """A graph that can be run.

    Args:
        module: holds one graph, which is left as it is.
        calls: what it calls, by name: each takes the sizes of symbols and gives a function of arrays.
        contiguous: whether each argument's elements lie side by side, in order.
        hints: sizes of the symbols at the first call.
        loose: for a call by name whether each of its results lies in another order, the same for the same sizes.
        changing: how many arrays calls overwrite, the first ones, by name; they are their first results.
        edges: what is done to arguments and results, None for nothing.
    """

    def __init__(
        self,
        module: ModuleOp,
        calls: Mapping[str, Callee],
        contiguous: Sequence[bool],
        hints: Sizes,
        loose: Mapping[str, Sequence[bool]] | None = None,
        changing: Mapping[str, int] | None = None,
        edges: Edges | None = None,
    ) -> None:
        self.module = module
        self._edges = edges
        self.plan, self.origin = planned(module, contiguous, hints, loose or {}, changing or {})
        self._graph = graph_of(module)
        self._calls = calls
        self._bound: dict[Any, _Bound] = {}
        self._alike: dict[Any, GroupKernel] = {}
        groups = self.plan.groups
        self.kernels = {group.name: self._kernel(group, group.shape) for group in groups}
        """The kernels of its groups by name; those for some sizes are others."""
        self._launched: dict[str, GroupKernel] = {}
        self._fused: dict[str, Fused] = {}
        self._parted: dict[str, str] = {}
        """For the maps of products that have run why they are kernels of their own, empty where they are not."""
        launching = [step for step in self.plan.steps if not (isinstance(step, Applied) and step.kind in _VIEWS)]
        self._several = len(launching) > 1

    def run(self, given: list[Any], sizes: Sizes, key: Any, starts: Sequence[int]) -> list[Any]:
        """Run the graph.

        Args:
            given: its arguments; the list is emptied, so that each dies when nothing needs it any more.
            sizes: the sizes of its symbols.
            key: what tells calls apart that need other code: shapes, strides, dtypes, alignment.
            starts: the addresses of the arguments.

        Returns:
            Its results: new arrays, arguments, or views of either.
        """
        rules = RULES.get()
        key = key, current_profile(), tuple(map(id, rules))
        bound = self._bound.get(key)
        replay = None if bound is None else bound.replay
        if replay is not None and replay.lock.acquire(blocking=False):
            try:
                if replay.is_here is None or replay.is_here():
                    return replay(given, starts)
            finally:
                replay.lock.release()
        return self._walk(given, sizes, key, bound, rules)

    def _walk(self, given: list[Any], sizes: Sizes, key: Any, bound: _Bound | None, rules: Any) -> list[Any]:
        """Run the graph step by step."""
        edges = self._edges
        targets = [] if edges is None else edges.targets(given)
        values: Values = [None] * self.plan.count
        values[: len(given)] = given if edges is None else edges.taken(given)
        if bound is None:
            if len(self._bound) >= _MOST_BOUND:
                self._bound.clear()
            found, self._bound[key] = self._bind(given, values, targets, sizes, rules)
            return found
        given.clear()
        for step in bound.steps:
            step(values)
        results = [values[number] for number in self.plan.results]
        return results if edges is None else edges.given(results, targets, sizes)

    def sizes(self, given: Sequence[Any]) -> dict[str, int]:
        """Return the sizes of the symbols, which the arguments' shapes decide."""
        dims = [dims_of(arg) for arg in self._graph.body.block.args]
        pairs = zip(dims, given, strict=True)
        return solved(pair for each, array in pairs for pair in zip(each, array.shape, strict=True))

    def explain(self, sizes: Sizes, device: Device, left: Collection[str] = ()) -> GraphExplanation:
        """Return what it runs at some sizes.

        Args:
            sizes: those of the last call.
            device: where it ran.
            left: names of what it calls that run as ATen.
        """
        from tessera.graph.explained import explained  # most programs ask for none

        ran = {name: one.kernel.explain() for name, one in self._fused.items() if one.kernel is not None}
        loaded = ran | {
            name: kernel.explanation for name, kernel in self._launched.items() if kernel.explanation is not None
        }
        return explained(self.module, sizes, device, self.origin, loaded, self._parted, left)

    def _bind(
        self, given: list[Any], values: Values, targets: list[list[Any]], sizes: Sizes, rules: object
    ) -> tuple[list[Any], _Bound]:
        """Run the graph once, step by step; return its results, and the steps, which are right for such arrays."""
        if self._several and ahead.can():
            step = partial(self._step, values=values, sizes=sizes)
            compile_ahead(self.plan, values, partial(self._needed, sizes=sizes), step, partial(_value_of, sizes=sizes))
        edges, numbers = self._edges, range(len(given))
        taken = [_taken(one, values[number]) for number, one in enumerate(given)]
        given.clear()
        steps: list[Run] = []
        seen = _Seen(values) if is_recorded(values) and not settings().debug else None
        like = values[0]
        for what, gone in zip(self.plan.steps, self.plan.gone, strict=True):
            step = self._step(what, values, sizes)
            steps.append(step)
            if seen is None:
                step(values)
            else:
                seen.add(what, step)
            if gone:
                drop(gone, values)
                steps.append(partial(drop, gone))
        results = [values[number] for number in self.plan.results]
        found = results if edges is None else edges.given(results, targets, sizes)
        if seen is None:
            return found, _Bound(steps, None, rules)
        wanted = _wanted(results, found, edges)
        facts = seen.items, like, numbers, self.plan.results, seen.held, seen.forms, taken, edges, wanted, sizes
        return found, _Bound(steps, _replay(Recording(*facts, self.plan.count)), rules)

    def _step(self, step: Step, values: Values, sizes: Sizes) -> Run:
        match step:
            case Group():
                return self._launch(step, values, sizes)
            case Called():
                return Call(self._calls[step.callee](sizes), step.operands, step.goals, step.lies)
            case Multiplied():
                return self._multiplied(step, values, sizes)
            case Applied():
                return Apply(_function_of(step, sizes), step.operands, step.goal)
            case Changed():
                function = partial(changed, self._calls[step.callee](sizes), step.in_place)
                return Call(function, step.operands, step.goals, [False] * len(step.goals))
            case Written():
                return Call(write, (step.target, step.value), (), ())

    def _fit(self, group: Group, values: Values, sizes: Sizes) -> _Fit | None:
        """Return how a group's kernel fits arrays such as these, None where it has nothing to write."""
        like = values[0]
        found = [arrays.view(values[number], "argument") for number in group.inputs]
        device = found[0].device if found else arrays.view(like, "argument").device
        made = [_view(output, sizes, device) for output in group.outputs]
        before = [_value_of(output.first, sizes) * output.dtype.bytes for output in group.outputs]
        if any(0 in view.shape for view in made):
            return None
        starts = [arrays.start(values[number], "argument") for number in group.inputs]
        pointers: list[int] = []
        views: list[ArrayView] = []
        for access in group.shape.accesses:
            whole = (made if access.is_result else found)[access.number]
            views.append(_seen(access, group.shape, whole))
            apart = _BASE * (2 + access.number)
            pointers.append(apart + before[access.number] if access.is_result else starts[access.number])
        return _Fit(self._kernel_at(group, sizes), pointers, views, device, before)

    def _multiplied(self, step: Multiplied, values: Values, sizes: Sizes) -> Fused | Parted:
        """Return how a product and its maps run on arrays such as these."""
        found = self._together(step, values, sizes)
        self._parted[step.group.name] = found if isinstance(found, str) else ""
        if isinstance(found, str):
            return Parted(step, sizes, partial(self._launch, step.group, sizes=sizes))
        made = Fused(step, found, sizes, values[0], partial(self._launch, step.rest, sizes=sizes))
        self._fused[step.group.name] = made
        return made

    def _together(self, step: Multiplied, values: Values, sizes: Sizes) -> Together | str:
        """Return a product and its maps as one kernel, or why they are two."""
        like = values[0]
        if not (arrays.is_torch(like) or isinstance(like, np.ndarray)):
            return OTHER_ARRAYS
        operands = in_one(values[step.left], values[step.right])
        if operands is None:
            return BATCHES
        left, right = (arrays.view(one, "an operand") for one in operands)
        batched = [view.shape[0] for view in (left, right) if len(view.shape) == 3]
        inputs = step.maps.inputs
        views = [left if at == step.source else arrays.view(values[n], "an operand") for at, n in enumerate(inputs)]
        found = together(step, views, sizes, batched[0] if batched else None)
        if isinstance(found, str):
            return found
        elements = prod(_value_of(dim, sizes) for dim in step.dims)
        size = Size(elements, _value_of(step.terms, sizes), left.dtype.bytes)
        return found if products.pays(found, *operands, size, destination_of(left.device).record()) else SLOWER

    def _needed(self, step: Group | Multiplied, values: Values, sizes: Sizes) -> Wanted | None:
        """Make what a step writes, and return the code that its kernel needs, None where it is there."""
        if isinstance(step, Multiplied):
            run = self._multiplied(step, values, sizes)
            run.multiply(values)  # which notes what that needs
            left = step.rest if isinstance(run, Fused) else step.group
            needed = None if left is None else self._needed(left, values, sizes)
            if isinstance(run, Parted):
                run.drop(values)
            return needed
        group = step
        fit = self._fit(group, values, sizes)
        like = values[0]
        _make(_makers(group, like, sizes), [output.number for output in group.outputs], like, values)
        return None if fit is None else fit.kernel.needed(fit.pointers, fit.views, fit.device)

    def _launch(self, group: Group | None, values: Values, sizes: Sizes) -> Run:
        """Return how a group's kernel is launched on arrays such as these."""
        assert group is not None, "nothing is left of a group without it"
        like = values[0]
        makers = _makers(group, like, sizes)
        fit = self._fit(group, values, sizes)
        if fit is None:
            return partial(_make, makers, [output.number for output in group.outputs], like)
        self._launched[group.name] = fit.kernel
        launch = fit.kernel.loaded(fit.pointers, fit.views, fit.device)
        scalars = [_value_of(dim, sizes) for dim in group.shape.sizes]
        sources = tuple((access.is_result, access.number) for access in group.shape.accesses)
        stream = stream_source([like], fit.device)
        return _Launched(group, launch, makers, fit.before, scalars, stream, sources, arrays.starter(like))

    def _kernel_at(self, group: Group, sizes: Sizes) -> GroupKernel:
        """Return a group's kernel for some sizes, which are compiled in where no array has them."""
        shape = group.shape.at(sizes)
        return self.kernels[group.name] if shape == group.shape else self._kernel(group, shape)

    def _kernel(self, group: Group, shape: Shape) -> GroupKernel:
        """Return the kernel of a group; groups that compute the same, as layers do, have one."""
        key = group.text, shape, group.dtypes
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = GroupKernel(signature_of(group.name, *key))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Fit:
    """A group's kernel for some arrays.

    Args:
        kernel: the kernel.
        pointers: addresses of its parameters; what it makes is taken to lie anywhere.
        views: its parameters.
        device: where they are.
        before: how far the first byte of each result is from that of its array.
    """

    kernel: GroupKernel
    pointers: list[int]
    views: list[ArrayView]
    device: Device
    before: list[int]


def _makers(group: Group, like: Any, sizes: Sizes) -> list[arrays.Maker]:
    """Return what makes the arrays that a group writes."""
    return [
        arrays.maker(like, tuple(_value_of(dim, sizes) for dim in output.whole), output.dtype)
        for output in group.outputs
    ]


def _view(output: Output, sizes: Sizes, device: Device) -> ArrayView:
    """Return what a group writes."""
    shape, strides = (tuple(_value_of(dim, sizes) for dim in dims) for dims in (output.dims, row_major(output.whole)))
    return ArrayView(shape, strides, output.dtype, device, readonly=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """The steps of a kind of call.

    Args:
        steps: one by one.
        replay: launches together, None where they cannot be recorded.
        rules: what functions around the call say of products, kept as calls are told apart by their identity.
    """

    steps: list[Run]
    replay: Replay | None
    rules: object


def _recorded(what: Step, step: Run, values: Values, roots: Roots) -> Item:
    """Run a step and return what it was."""
    if isinstance(what, Written) and values[what.target] is values[what.value]:
        return Launches((), (), {}, {})  # it lies there already, as for every call of the kind
    match what:
        case Group():
            operands, results = what.inputs, [output.number for output in what.outputs]
        case Called() | Multiplied():
            operands, results = what.operands, what.goals
        case Applied():
            operands, results = what.operands, [what.goal]
        case Changed():
            operands, results = what.operands, what.goals
        case Written():
            operands, results = (what.target, what.value), ()
    exact = step.places() if isinstance(step, _Launched) else None
    pure = isinstance(what, Group | Multiplied) or (isinstance(what, Applied) and what.kind in ("contract", "reduce"))
    return record(step, operands, results, values, roots, pure, exact)


class _Seen:
    """What a run has shown so far.

    Args:
        values: the run's, which are its arguments yet.
    """

    def __init__(self, values: Values) -> None:
        self._values, self._roots = values, Roots()
        self.items: list[Item] = []
        self.held: dict[int, int] = {}
        """The bytes of each value that has memory of its own."""
        self.forms: dict[int, Form] = {}
        self._note([number for number, value in enumerate(values) if value is not None], is_held=True)

    def add(self, what: Step, step: Run) -> None:
        """Run a step."""
        item = _recorded(what, step, self._values, self._roots)
        self.items.append(item)
        self._roots.add(item)
        if isinstance(item, View):
            self._note([item.number], is_held=False)
        else:
            self._note([*item.results], is_held=True)
            self._note([*item.same] if isinstance(item, Launches) else [], is_held=False)

    def _note(self, numbers: Sequence[int], is_held: bool) -> None:
        for number in numbers:
            value = self._values[number]
            if is_held and value is not None:
                self.held[number] = arrays.nbytes(value, "a value")
            form = form_of(value)
            if form is not None:
                self.forms[number] = form


def _taken(given: Any, value: Any) -> Form | None:
    """Return how an argument was given, None where its value starts elsewhere."""
    if not arrays.is_torch(given) or given is value:
        return form_of(given)
    part = part_of(value, given)
    return form_of(given) if part is not None and not part.after else None


def _wanted(results: Sequence[Any], found: Sequence[Any], edges: Edges | None) -> list[Part | None]:
    """Return each result that is an array as a part of the graph's own."""
    if not any(map(arrays.is_torch, results)):
        return [None] * len(results)
    if edges is None:
        return [part_of(one, one) for one in results]
    pairs = zip(found, edges.gives, strict=True)
    return [part_of(one, results[by.number]) for one, by in pairs if not isinstance(by, Number)]


def _replay(recording: Recording) -> Replay | None:
    """Return recorded steps as one function, None where the driver lacks one."""
    try:
        return Replay(recording)
    except NotDirect:
        return None


class _Launched:
    """Launches a kernel, after it has made arrays for its results.

    Args:
        group: its ops.
        launch: its launch.
        makers: make the results' arrays.
        before: how far the first byte of each result is from that of its array.
        scalars: sizes.
        stream: gives the stream of a call.
        sources: where each parameter's address comes from.
        start: gives an array's address.
    """

    __slots__ = ("_before", "_goals", "_inputs", "_launch", "_makers", "_scalars", "_sources", "_start", "_stream")

    def __init__(
        self,
        group: Group,
        launch: Launch,
        makers: Sequence[arrays.Maker],
        before: Sequence[int],
        scalars: Sequence[int],
        stream: Callable[[Sequence[Any]], int],
        sources: tuple[tuple[bool, int], ...],
        start: Callable[[Any], int],
    ) -> None:
        self._inputs = group.inputs
        self._goals = [output.number for output in group.outputs]
        self._before = before
        self._launch, self._makers, self._scalars = launch, makers, scalars
        self._stream, self._sources = stream, sources
        self._start = start

    def places(self) -> list[Place]:
        """Return where each parameter's address lies: in which value, how far after its start."""
        return [
            (self._goals[number], self._before[number]) if is_result else (self._inputs[number], 0)
            for is_result, number in self._sources
        ]

    def __call__(self, values: Values) -> None:
        """Run the kernel."""
        like = values[0]
        _make(self._makers, self._goals, like, values)
        starts = [self._start(values[number]) for number in self._inputs]
        goals = [self._start(values[number]) + at for number, at in zip(self._goals, self._before, strict=True)]
        pointers = [goals[number] if is_result else starts[number] for is_result, number in self._sources]
        self._launch(pointers, self._scalars, (), self._stream([like]))


def _make(makers: Sequence[arrays.Maker], goals: Sequence[int], like: Any, values: Values) -> None:
    """Make arrays, but for those that another kernel writes a part of, too, and that it has made."""
    for number, make in zip(goals, makers, strict=True):
        if values[number] is None:
            values[number] = make(like)


def _value_of(dim: Dim, sizes: Sizes) -> int:
    value = dim.value(sizes)
    assert value is not None, "a call decides all sizes"
    return value


def _seen(access: Access, shape: Shape, view: ArrayView) -> ArrayView:
    """Return an array as a kernel's parameter: along the kernel's axes, of which some are several dimensions."""
    if access.rank:
        return view
    sizes: list[int] = []
    strides: list[int] = []
    for axis in shape.along(access):
        dims = [d for d, at in enumerate(access.place) if at != NONE and at in shape.axes[axis].parts]
        sizes.append(prod(view.shape[d] for d in dims))
        strides.append(view.strides[dims[-1]])
    if not sizes:
        sizes, strides = [1], [1]
    return ArrayView(tuple(sizes), tuple(strides), view.dtype, view.device, view.readonly)


def _function_of(step: Applied, sizes: Sizes) -> Callee:
    """Return what is done to arrays by the library they are of."""
    dims = tuple(_value_of(dim, sizes) for dim in step.dims)
    match step.kind:
        case "transpose":
            return partial(_transposed, step.numbers)
        case "reshape":
            return partial(_reshaped, dims)
        case "broadcast":
            return partial(_broadcast, step.numbers, dims)
        case "slice":
            return partial(_sliced, _slices([_value_of(dim, sizes) for dim in step.starts], step.numbers, dims))
        case "concat":
            return partial(_joined, step.numbers[0])
        case "contract":
            return plain
        case "add_rows":
            return partial(_added, dims[0])
        case _:
            return partial(_reduced, step.fn, step.numbers)


def _slices(starts: Sequence[int], steps: Sequence[int], counts: Sequence[int]) -> tuple[slice, ...]:
    """Return the part that a slice is."""
    bounds = zip(starts, steps, counts, strict=True)
    return tuple(slice(at, at + max((count - 1) * step + 1, 0) if count else at, step) for at, step, count in bounds)


def _transposed(perm: tuple[int, ...], array: Any) -> Any:
    return array.permute(perm) if arrays.is_torch(array) else array.transpose(perm)


def _reshaped(shape: tuple[int, ...], array: Any) -> Any:
    return array.reshape(shape)


def _broadcast(places: tuple[int, ...], shape: tuple[int, ...], array: Any) -> Any:
    thin = [1] * len(shape)
    for axis, at in enumerate(places):
        thin[at] = array.shape[axis]
    array = array.reshape(thin)
    return array.expand(shape) if arrays.is_torch(array) else np.broadcast_to(array, shape)


def _sliced(slices: tuple[slice, ...], array: Any) -> Any:
    return array[slices]


def _joined(axis: int, *given: Any) -> Any:
    if arrays.is_torch(given[0]):
        return sys.modules["torch"].cat(given, axis)
    return np.concatenate(given, axis)


def _added(count: int, array: Any, index: Any) -> Any:
    return BACKWARD.fresh(rows.in_rows(array), index, count, -1)[0]


def _reduced(fn: str, axes: tuple[int, ...], array: Any) -> Any:
    """Reduce an array along some dimensions, or all."""
    if fn == "sum":
        return ops.reduce.sum(array, axes or None)
    found = (ops.reduce.max if fn == "max" else ops.reduce.min)(array, axes[0] if axes else None)
    return found[0] if axes else found
