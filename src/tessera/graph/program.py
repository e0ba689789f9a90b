"""Runs graphs: groups as kernels, products and wide sums by the library, views by the library of the arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from operator import methodcaller
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from tessera import ops
from tessera.data import dataclass
from tessera.driver.group_kernel import GroupKernel
from tessera.driver.launch import Launch, stream_source
from tessera.frontend.group.accesses import Access, Shape, shape_of
from tessera.frontend.group.source import signature_of
from tessera.ir.graph.structure import CallOp, GraphOp, GroupOp, ReturnOp
from tessera.ir.graph.sums import ContractOp, ReduceOp
from tessera.ir.graph.takes import StoredOp
from tessera.ir.graph.types import ONE, array_type, dims_of
from tessera.ir.graph.views import BroadcastOp, ConcatOp, PlaceOp, ReshapeOp, SliceOp, TransposeOp
from tessera.numerics.dtypes import DType
from tessera.ops import arrays
from tessera.runtime.views import ArrayView, row_major
from tessera.schedule.fuse.groups import GroupPass
from tessera.schedule.fuse.places import NONE
from tessera.target.dims import Dim, solved

Values = list[Any]
"""What a run has computed, by the number of the value."""
Sizes = Mapping[str, int]
Step = Callable[[Values], None]
Call = Callable[..., Any]

_BASE = 1 << 44
"""Where arrays that a run makes are taken to lie when its kernels are chosen: apart from one another, and aligned."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A group with its kernel.

    Args:
        name: the kernel's name.
        kernel: the kernel.
        shape: its form.
        inputs: numbers of the values that it reads.
        outputs: numbers of the values that it makes, with their sizes and dtypes.
    """

    name: str
    kernel: GroupKernel
    shape: Shape
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, tuple[Dim, ...], DType], ...]


class Program:
    """A graph that can be run.

    Args:
        module: holds one graph, which is cut into groups.
        calls: what it calls, by name: each takes the sizes of symbols and gives a function of arrays.
        contiguous: whether each argument's elements lie side by side, in order.
        hints: sizes of the symbols at the first call.
    """

    def __init__(self, module: ModuleOp, calls: Mapping[str, Call], contiguous: Sequence[bool], hints: Sizes) -> None:
        GroupPass().apply(module)
        self.module = module
        self._graph = next(op for op in module.ops if isinstance(op, GraphOp))
        self._calls = calls
        self._hints = hints
        self._numbers: dict[SSAValue, int] = {}
        self._lies: dict[SSAValue, bool] = {}
        self._bound: dict[Any, list[Step]] = {}
        block = self._graph.body.block
        for arg, lies in zip(block.args, contiguous, strict=True):
            self._number(arg, lies)
        self.kernels: dict[Operation, Kernel] = {}
        for op in block.ops:
            self._prepare(op)
        last = cast(ReturnOp, block.last_op)
        self._results = [self._numbers[value] for value in last.results_]

    def _number(self, value: SSAValue, lies: bool) -> int:
        self._lies[value] = lies
        return self._numbers.setdefault(value, len(self._numbers))

    def _prepare(self, op: Operation) -> None:
        """Number an op's results, and make the kernel of a group."""
        match op:
            case TransposeOp():
                self._number(op.result, self._lies[op.source] and _keeps_order(op))
            case ReshapeOp():
                self._number(op.result, self._lies[op.source])
            case BroadcastOp():
                grows = [dim for dim in dims_of(op.result) if dim != ONE] != [d for d in dims_of(op.source) if d != ONE]
                self._number(op.result, self._lies[op.source] and not grows)
            case SliceOp():
                self._number(op.result, False)
            case StoredOp():
                self._lies[op.result] = self._lies[op.source]
                self._numbers[op.result] = self._numbers[op.source]
            case _:
                for result in op.results:
                    self._number(result, True)
        if isinstance(op, GroupOp):
            shape = shape_of(op, [self._lies[value] for value in op.inputs], self._hints)
            name = f"{self._graph.sym_name.data}_{len(self.kernels)}"
            made = [(self._numbers[value], dims_of(value), array_type(value).dtype) for value in op.outputs]
            kernel = GroupKernel(signature_of(name, op, shape))
            inputs = tuple(self._numbers[value] for value in op.inputs)
            self.kernels[op] = Kernel(name, kernel, shape, inputs, tuple(made))

    def run(self, given: list[Any], sizes: Sizes, key: Any) -> list[Any]:
        """Run the graph.

        Args:
            given: its arguments; the list is emptied, so that each dies when nothing needs it any more.
            sizes: the sizes of its symbols.
            key: what tells calls apart that need other code: shapes, strides, dtypes, alignment.

        Returns:
            Its results: new arrays, arguments, or views of either.
        """
        bound = self._bound.get(key)
        values: Values = [None] * len(self._numbers)
        values[: len(given)] = given
        given.clear()
        if bound is None:
            bound = self._bound[key] = self._bind(values, sizes)
        else:
            for step in bound:
                step(values)
        return [values[number] for number in self._results]

    def sizes(self, given: Sequence[Any]) -> dict[str, int]:
        """Return the sizes of the symbols, which the arguments' shapes decide."""
        dims = [dims_of(arg) for arg in self._graph.body.block.args]
        pairs = zip(dims, given, strict=True)
        return solved(pair for each, array in pairs for pair in zip(each, array.shape, strict=True))

    def _bind(self, values: Values, sizes: Sizes) -> list[Step]:
        """Run the graph once, step by step, and return the steps, which are right for such arrays."""
        steps: list[Step] = []
        last = self._last_uses()
        for place, op in enumerate(self._graph.body.block.ops):
            if isinstance(op, ReturnOp):
                break
            if isinstance(op, StoredOp):
                continue
            step = self._step(op, values, sizes)
            step(values)
            steps.append(step)
            gone = last.get(place, [])
            if gone:
                drop = partial(_drop, gone)
                drop(values)
                steps.append(drop)
        return steps

    def _last_uses(self) -> dict[int, list[int]]:
        """Return the numbers of values that nothing needs after an op, by its place."""
        last: dict[int, int] = {}
        for place, op in enumerate(self._graph.body.block.ops):
            for value in (*op.operands, *op.results):
                last[self._numbers[value]] = place
        found: dict[int, list[int]] = {}
        kept = {*self._results, 0}  # results are made beside the first
        for number, place in last.items():
            if number not in kept:
                found.setdefault(place, []).append(number)
        return found

    def _step(self, op: Operation, values: Values, sizes: Sizes) -> Step:
        if isinstance(op, GroupOp):
            return self._launch(self.kernels[op], values, sizes)
        goals = [self._numbers[value] for value in op.results]
        operands = [self._numbers[value] for value in op.operands]
        if isinstance(op, CallOp):
            return partial(_call, self._calls[op.callee.data](sizes), operands, goals)
        return partial(_apply, _function_of(op, sizes), operands, goals[0])

    def _launch(self, kernel: Kernel, values: Values, sizes: Sizes) -> Step:
        """Return how a group's kernel is launched on arrays such as these."""
        like = next(value for value in values if value is not None)
        shapes = [tuple(_value_of(dim, sizes) for dim in dims) for _, dims, _ in kernel.outputs]
        makers = [arrays.maker(like, shape, dtype) for shape, (_, _, dtype) in zip(shapes, kernel.outputs, strict=True)]
        found = [arrays.view(values[number], "argument") for number in kernel.inputs]
        device = found[0].device if found else arrays.view(like, "argument").device
        made = [
            ArrayView(shape, row_major(shape), dtype, device, readonly=False)
            for shape, (_, _, dtype) in zip(shapes, kernel.outputs, strict=True)
        ]
        if any(0 in view.shape for view in made):
            return partial(_make_empty, makers, [number for number, _, _ in kernel.outputs], like)
        starts = [arrays.start(values[number], "argument") for number in kernel.inputs]
        pointers: list[int] = []
        views: list[ArrayView] = []
        for access in kernel.shape.accesses:
            whole = (made if access.is_result else found)[access.number]
            views.append(_seen(access, kernel.shape, whole))
            pointers.append(_BASE * (2 + access.number) if access.is_result else starts[access.number])
        launch = kernel.kernel.loaded(pointers, views, device)
        scalars = [_value_of(dim, sizes) for dim in kernel.shape.sizes]
        sources = tuple((access.is_result, access.number) for access in kernel.shape.accesses)
        return _Launched(kernel, launch, makers, scalars, stream_source([like], device), sources, _start_of(like))


class _Launched:
    """Launches a kernel, after it has made arrays for its results.

    Args:
        kernel: the kernel.
        launch: its launch.
        makers: make the results' arrays.
        scalars: sizes.
        stream: gives the stream of a call.
        sources: where each parameter's address comes from.
        start: gives an array's address.
    """

    __slots__ = ("_goals", "_inputs", "_launch", "_makers", "_scalars", "_sources", "_start", "_stream")

    def __init__(
        self,
        kernel: Kernel,
        launch: Launch,
        makers: Sequence[arrays.Maker],
        scalars: Sequence[int],
        stream: Callable[[Sequence[Any]], int],
        sources: tuple[tuple[bool, int], ...],
        start: Callable[[Any], int],
    ) -> None:
        self._inputs = kernel.inputs
        self._goals = [number for number, _, _ in kernel.outputs]
        self._launch, self._makers, self._scalars = launch, makers, scalars
        self._stream, self._sources = stream, sources
        self._start = start

    def __call__(self, values: Values) -> None:
        """Run the kernel."""
        like = values[self._inputs[0]] if self._inputs else next(value for value in values if value is not None)
        made = [make(like) for make in self._makers]
        given = [values[number] for number in self._inputs]
        starts, goals = list(map(self._start, given)), list(map(self._start, made))
        pointers = [goals[number] if is_result else starts[number] for is_result, number in self._sources]
        self._launch(pointers, self._scalars, (), self._stream([like]))
        for number, array in zip(self._goals, made, strict=True):
            values[number] = array


def _start_of(like: Any) -> Callable[[Any], int]:
    """Return what gives the addresses of arrays such as one."""
    if arrays.is_torch(like):
        return methodcaller("data_ptr")
    return lambda array: arrays.reader(array, "an array").read(array)[0]


def _drop(numbers: Sequence[int], values: Values) -> None:
    for number in numbers:
        values[number] = None


def _make_empty(makers: Sequence[arrays.Maker], goals: Sequence[int], like: Any, values: Values) -> None:
    for number, make in zip(goals, makers, strict=True):
        values[number] = make(like)


def _apply(function: Call, operands: Sequence[int], goal: int, values: Values) -> None:
    values[goal] = function(*(values[number] for number in operands))


def _call(function: Call, operands: Sequence[int], goals: Sequence[int], values: Values) -> None:
    for number, result in zip(goals, function(*(values[number] for number in operands)), strict=True):
        values[number] = _lying(result)


def _lying(array: Any) -> Any:
    """Return an array whose elements lie side by side, in order."""
    if arrays.is_torch(array):
        return array.contiguous()
    return np.ascontiguousarray(cast(Any, array)) if isinstance(array, np.ndarray) else array


def _keeps_order(op: TransposeOp) -> bool:
    """Return whether only dimensions of one element move."""
    dims = dims_of(op.source)
    moved = [axis for axis in op.permutation if dims[axis] != ONE]
    return moved == sorted(moved)


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


def _function_of(op: Operation, sizes: Sizes) -> Call:
    """Return what an op does to arrays of the library they are of."""
    match op:
        case TransposeOp():
            return partial(_transposed, op.permutation)
        case ReshapeOp():
            return partial(_reshaped, tuple(_value_of(dim, sizes) for dim in dims_of(op.result)))
        case BroadcastOp():
            return partial(_broadcast, op.places, tuple(_value_of(dim, sizes) for dim in dims_of(op.result)))
        case SliceOp():
            return partial(_sliced, _slices(op, dims_of(op.result), sizes))
        case PlaceOp():
            shape = tuple(_value_of(dim, sizes) for dim in dims_of(op.result))
            return partial(_placed, shape, _slices(op, dims_of(op.source), sizes))
        case ConcatOp():
            return partial(_joined, op.axis.data)
        case ContractOp():
            return ops.matmul
        case ReduceOp():
            return partial(_reduced, op.fn.data, op.reduced, array_type(op.source).rank)
        case _:
            raise AssertionError(f"{op.name} stands outside of groups")


def _slices(op: SliceOp | PlaceOp, dims: Sequence[Dim], sizes: Sizes) -> tuple[slice, ...]:
    """Return the part that a slice is: in each dimension as many elements as some sizes say."""
    starts, counts = ([_value_of(dim, sizes) for dim in each] for each in (op.first, dims))
    bounds = zip(starts, op.apart, counts, strict=True)
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


def _placed(shape: tuple[int, ...], slices: tuple[slice, ...], array: Any) -> Any:
    whole = array.new_zeros(shape) if arrays.is_torch(array) else np.zeros(shape, array.dtype)
    whole[slices] = array
    return whole


def _reduced(fn: str, axes: tuple[int, ...], rank: int, array: Any) -> Any:
    whole = len(axes) == rank
    if fn == "sum":
        return ops.reduce.sum(array, None if whole else axes)
    found = (ops.reduce.max if fn == "max" else ops.reduce.min)(array, None if whole else axes[0])
    return found if whole else found[0]
