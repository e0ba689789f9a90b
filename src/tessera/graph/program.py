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
from tessera.frontend.group.accesses import Access, Shape, Strides, row_major, shape_of
from tessera.frontend.group.source import signature_of, text_of_group
from tessera.ir.graph.structure import CallOp, GraphOp, GroupOp, ReturnOp
from tessera.ir.graph.sums import ContractOp, ReduceOp
from tessera.ir.graph.takes import StoredOp
from tessera.ir.graph.types import ONE, ZERO, array_type, dims_of, ordered
from tessera.ir.graph.views import BroadcastOp, ConcatOp, ReshapeOp, SliceOp, TransposeOp
from tessera.numerics.dtypes import DType
from tessera.ops import arrays
from tessera.runtime.device import Device
from tessera.runtime.views import ArrayView
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
class Output:
    """An array that a group makes, or a part of one that several groups write.

    Args:
        number: the number of the array.
        whole: its sizes.
        dtype: its dtype.
        dims: the sizes of what the group writes.
        first: the place of the group's first element in the array.
    """

    number: int
    whole: tuple[Dim, ...]
    dtype: DType
    dims: tuple[Dim, ...]
    first: Dim

    def view(self, sizes: Sizes, device: Device) -> ArrayView:
        """Return what the group writes."""
        shape, strides = (tuple(_value_of(dim, sizes) for dim in dims) for dims in (self.dims, row_major(self.whole)))
        return ArrayView(shape, strides, self.dtype, device, readonly=False)

    def bytes_before(self, sizes: Sizes) -> int:
        """Return how far the group's first element is from that of the array."""
        return _value_of(self.first, sizes) * self.dtype.bytes


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A group with its kernel.

    Args:
        name: the kernel's name.
        kernel: the kernel.
        shape: its form.
        inputs: numbers of the values that it reads.
        outputs: what it makes.
    """

    name: str
    kernel: GroupKernel
    shape: Shape
    inputs: tuple[int, ...]
    outputs: tuple[Output, ...]


class Program:
    """A graph that can be run.

    Args:
        module: holds one graph, which is cut into groups.
        calls: what it calls, by name: each takes the sizes of symbols and gives a function of arrays.
        contiguous: whether each argument's elements lie side by side, in order.
        hints: sizes of the symbols at the first call.
        loose: for a call by name whether each of its results lies in another order, the same for the same sizes.
    """

    def __init__(
        self,
        module: ModuleOp,
        calls: Mapping[str, Call],
        contiguous: Sequence[bool],
        hints: Sizes,
        loose: Mapping[str, Sequence[bool]] | None = None,
    ) -> None:
        GroupPass().apply(module)
        self.module = module
        self._graph = next(op for op in module.ops if isinstance(op, GraphOp))
        self._calls = calls
        self._loose = loose or {}
        self._hints = hints
        self._numbers: dict[SSAValue, int] = {}
        self._strides: dict[SSAValue, Strides | None] = {}
        self._bound: dict[Any, list[Step]] = {}
        self._alike: dict[tuple[str, Shape], tuple[str, GroupKernel]] = {}
        block = self._graph.body.block
        for arg, lies in zip(block.args, contiguous, strict=True):
            self._number(arg, row_major(dims_of(arg)) if lies else None)
        self.kernels: dict[Operation, Kernel] = {}
        for op in block.ops:
            self._prepare(op)
        last = cast(ReturnOp, block.last_op)
        self._results = [self._numbers[value] for value in last.results_]

    def _number(self, value: SSAValue, strides: Strides | None) -> int:
        self._strides[value] = strides
        return self._numbers.setdefault(value, len(self._numbers))

    def _lies(self, value: SSAValue) -> bool:
        """Return whether an array's elements lie side by side, in order."""
        dims, strides = dims_of(value), self._strides[value]
        return strides is not None and all(
            dim == ONE or found == wanted for dim, found, wanted in zip(dims, strides, row_major(dims), strict=True)
        )

    def _prepare(self, op: Operation) -> None:
        """Number an op's results, and make the kernel of a group."""
        if isinstance(op, StoredOp):
            self._strides[op.result] = self._strides[op.source]
            self._numbers[op.result] = self._numbers[op.source]
        elif isinstance(op, TransposeOp | BroadcastOp | SliceOp | ReshapeOp):
            self._number(op.result, self._strides_of(op))
        elif isinstance(op, GroupOp):
            outputs = tuple(map(self._output, op.outputs))
            layouts = [row_major(output.whole) for output in outputs]
            shape = shape_of(op, [self._strides[value] for value in op.inputs], layouts, self._hints)
            name, kernel = self._kernel_of(op, shape)
            inputs = tuple(self._numbers[value] for value in op.inputs)
            self.kernels[op] = Kernel(name, kernel, shape, inputs, outputs)
        elif isinstance(op, CallOp) and op.callee.data in self._loose:
            for result, is_loose in zip(op.results, self._loose[op.callee.data], strict=True):
                self._number(result, None if is_loose else row_major(dims_of(result)))
        else:
            for result in op.results:
                self._number(result, row_major(dims_of(result)))

    def _kernel_of(self, op: GroupOp, shape: Shape) -> tuple[str, GroupKernel]:
        """Return a group's kernel with its name; groups of the same ops, such as those of layers, share one."""
        name = f"{self._graph.sym_name.data}_{len(self.kernels)}"
        text = text_of_group(op)
        known = self._alike.get((text, shape))
        if known is None:
            known = self._alike[text, shape] = name, GroupKernel(signature_of(name, op, shape, text))
        return known

    def _strides_of(self, op: TransposeOp | BroadcastOp | SliceOp | ReshapeOp) -> Strides | None:
        """Return the strides of a view."""
        source = self._strides[op.source]
        if isinstance(op, ReshapeOp) and self._lies(op.source):
            return row_major(dims_of(op.result))
        if source is None:
            return None
        match op:
            case TransposeOp():
                return tuple(source[axis] for axis in op.permutation)
            case SliceOp():
                return tuple(ordered(stride * step) for stride, step in zip(source, op.apart, strict=True))
            case BroadcastOp():
                of, own, dims = {at: axis for axis, at in enumerate(op.places)}, dims_of(op.source), dims_of(op.result)
                kept = [axis in of and own[of[axis]] == dim for axis, dim in enumerate(dims)]
                return tuple(source[of[axis]] if stays else ZERO for axis, stays in enumerate(kept))
            case ReshapeOp():
                places = op.places
                return None if places is None else tuple(ZERO if of is None else source[of] for of in places)

    def _output(self, value: SSAValue) -> Output:
        """Return what a group makes of a result, which may be a part of a concatenation that lies in its array."""
        dims, dtype = dims_of(value), array_type(value).dtype
        concat = joined_by(value)
        if concat is None or not is_in_place(concat):
            return Output(self._number(value, row_major(dims)), dims, dtype, dims, ZERO)
        whole = dims_of(concat.result)
        number = self._number(concat.result, row_major(whole))
        self._numbers[value] = number
        before = [dims_of(source)[concat.axis.data] for source in concat.sources[: concat.sources.index(value)]]
        first = sum(before, ZERO) * row_major(whole)[concat.axis.data]
        return Output(number, whole, dtype, dims, ordered(first))

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
            if isinstance(op, StoredOp) or (isinstance(op, ConcatOp) and is_in_place(op)):
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
            return self._launch(op, values, sizes)
        goals = [self._numbers[value] for value in op.results]
        operands = [self._numbers[value] for value in op.operands]
        if isinstance(op, CallOp):
            lies = [self._lies(value) for value in op.results]
            return partial(_call, self._calls[op.callee.data](sizes), operands, goals, lies)
        return partial(_apply, _function_of(op, sizes), operands, goals[0])

    def _launch(self, op: GroupOp, values: Values, sizes: Sizes) -> Step:
        """Return how a group's kernel is launched on arrays such as these."""
        kernel = self.kernels[op]
        like = next(value for value in values if value is not None)
        makers = [
            arrays.maker(like, tuple(_value_of(dim, sizes) for dim in output.whole), output.dtype)
            for output in kernel.outputs
        ]
        found = [arrays.view(values[number], "argument") for number in kernel.inputs]
        device = found[0].device if found else arrays.view(like, "argument").device
        made = [output.view(sizes, device) for output in kernel.outputs]
        before = [output.bytes_before(sizes) for output in kernel.outputs]
        if any(0 in view.shape for view in made):
            return partial(_make, makers, [output.number for output in kernel.outputs], like)
        starts = [arrays.start(values[number], "argument") for number in kernel.inputs]
        pointers: list[int] = []
        views: list[ArrayView] = []
        for access in kernel.shape.accesses:
            whole = (made if access.is_result else found)[access.number]
            views.append(_seen(access, kernel.shape, whole))
            apart = _BASE * (2 + access.number)
            pointers.append(apart + before[access.number] if access.is_result else starts[access.number])
        launch = _kernel_at(kernel, op, sizes).loaded(pointers, views, device)
        scalars = [_value_of(dim, sizes) for dim in kernel.shape.sizes]
        sources = tuple((access.is_result, access.number) for access in kernel.shape.accesses)
        stream = stream_source([like], device)
        return _Launched(kernel, launch, makers, before, scalars, stream, sources, _start_of(like))


def _kernel_at(kernel: Kernel, op: GroupOp, sizes: Sizes) -> GroupKernel:
    """Return a group's kernel for some sizes, which are compiled in where no array has them."""
    shape = kernel.shape.at(sizes)
    if shape == kernel.shape:
        return kernel.kernel
    return GroupKernel(signature_of(kernel.name, op, shape, text_of_group(op)))


class _Launched:
    """Launches a kernel, after it has made arrays for its results.

    Args:
        kernel: the kernel.
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
        kernel: Kernel,
        launch: Launch,
        makers: Sequence[arrays.Maker],
        before: Sequence[int],
        scalars: Sequence[int],
        stream: Callable[[Sequence[Any]], int],
        sources: tuple[tuple[bool, int], ...],
        start: Callable[[Any], int],
    ) -> None:
        self._inputs = kernel.inputs
        self._goals = [output.number for output in kernel.outputs]
        self._before = before
        self._launch, self._makers, self._scalars = launch, makers, scalars
        self._stream, self._sources = stream, sources
        self._start = start

    def __call__(self, values: Values) -> None:
        """Run the kernel."""
        like = values[self._inputs[0]] if self._inputs else next(value for value in values if value is not None)
        _make(self._makers, self._goals, like, values)
        starts = [self._start(values[number]) for number in self._inputs]
        goals = [self._start(values[number]) + at for number, at in zip(self._goals, self._before, strict=True)]
        pointers = [goals[number] if is_result else starts[number] for is_result, number in self._sources]
        self._launch(pointers, self._scalars, (), self._stream([like]))


def _start_of(like: Any) -> Callable[[Any], int]:
    """Return what gives the addresses of arrays such as one."""
    if arrays.is_torch(like):
        return methodcaller("data_ptr")
    return lambda array: arrays.reader(array, "an array").read(array)[0]


def _drop(numbers: Sequence[int], values: Values) -> None:
    for number in numbers:
        values[number] = None


def _make(makers: Sequence[arrays.Maker], goals: Sequence[int], like: Any, values: Values) -> None:
    """Make arrays, but for those that another kernel writes a part of, too, and that it has made."""
    for number, make in zip(goals, makers, strict=True):
        if values[number] is None:
            values[number] = make(like)


def _apply(function: Call, operands: Sequence[int], goal: int, values: Values) -> None:
    values[goal] = function(*(values[number] for number in operands))


def _call(function: Call, operands: Sequence[int], goals: Sequence[int], lies: Sequence[bool], values: Values) -> None:
    found = function(*(values[number] for number in operands))
    for number, result, in_order in zip(goals, found, lies, strict=True):
        values[number] = _lying(result) if in_order else result


def _lying(array: Any) -> Any:
    """Return an array whose elements lie side by side, in order."""
    if arrays.is_torch(array):
        return array.contiguous()
    return np.ascontiguousarray(cast(Any, array)) if isinstance(array, np.ndarray) else array


def joined_by(value: SSAValue) -> ConcatOp | None:
    """Return the concatenation that alone reads a value, None where there is none."""
    use = value.get_user_of_unique_use()
    return use if isinstance(use, ConcatOp) else None


def is_in_place(op: ConcatOp) -> bool:
    """Return whether groups write each part of a concatenation where it lies."""
    return all(isinstance(source.owner, GroupOp) and joined_by(source) is op for source in op.sources)


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
        case ConcatOp():
            return partial(_joined, op.axis.data)
        case ContractOp():
            return ops.matmul
        case ReduceOp():
            return partial(_reduced, op.fn.data, op.reduced, array_type(op.source).rank)
        case _:
            raise AssertionError(f"{op.name} stands outside of groups")


def _slices(op: SliceOp, dims: Sequence[Dim], sizes: Sizes) -> tuple[slice, ...]:
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


def _reduced(fn: str, axes: tuple[int, ...], rank: int, array: Any) -> Any:
    whole = len(axes) == rank
    if fn == "sum":
        return ops.reduce.sum(array, None if whole else axes)
    found = (ops.reduce.max if fn == "max" else ops.reduce.min)(array, None if whole else axes[0])
    return found if whole else found[0]
