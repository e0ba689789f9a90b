"""Products of matrices with a group of maps: which of them are one kernel, and how that is called.

The kernel of a product applies the maps to its sums while they are in registers (`ops.epilogue.maps`), so that the
product is neither written nor read. Whether that pays follows from sizes and device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from tessera.data import dataclass
from tessera.driver.kernel import Kernel
from tessera.frontend.group.accesses import Access, Axis, Shape
from tessera.frontend.group.tiles import AXES
from tessera.graph.plan import Dims, Multiplied, Output
from tessera.graph.runs import Run, Values
from tessera.ir.graph.compact import block_of
from tessera.ir.graph.points import MapOp
from tessera.numerics.dtypes import DType
from tessera.numerics.functions import FUNCTIONS, Function
from tessera.ops import arrays
from tessera.ops.epilogue.chain import Epilogue
from tessera.ops.epilogue.maps import Beside, Maps
from tessera.ops.linalg.batches import in_one, plain
from tessera.ops.linalg.gemm import Gemm, gemm, gemm_batched
from tessera.ops.linalg.plan import Plan
from tessera.runtime.views import ArrayView
from tessera.schedule.fuse.places import NONE
from tessera.target.dims import Dim
from tessera.target.predicted import seconds
from tessera.target.records import TargetRecord

Sizes = Mapping[str, int]

STRIDES = "an array that it reads does not lie along rows and columns of the product"
BATCHES = "the batches of the operands are no single one"
EMPTY = "it has no elements"
OTHER_ARRAYS = "its arrays are neither PyTorch's nor NumPy's"
SLOWER = "one kernel is predicted to take as long as two, or longer"
TOO_LONG = "its maps are too long to be repeated for all sums of a thread"
NOT_RUN = "it has not run"
"""Reasons why a product and its maps are two kernels."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An array as the kernel takes it.

    Args:
        beside: what it is to the result.
        shape: its sizes.
        strides: its strides.
    """

    beside: Beside
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Together:
    """A product and its maps as one kernel.

    Args:
        maps: the step.
        reads: what it reads beside the product, by number of the value.
        writes: what it writes beside the step's result, by number of the value.
        whole: the sizes of those.
        first: what the step gives.
        cost: of the functions for an element, in instructions of a kernel of their own.
        again: whether another kernel reads the result for what is left of the group.
    """

    maps: Maps
    reads: tuple[tuple[int, Placed], ...]
    writes: tuple[tuple[int, Placed], ...]
    whole: tuple[Dims, ...]
    first: Output
    cost: int
    again: bool

    def epilogue(self, arrays: Sequence[Any] = (), sizes: Sequence[int] = ()) -> Epilogue:
        """Return the epilogue of the product, without arrays to plan it by."""
        return Epilogue((self.maps.step(arrays, sizes),))


def together(step: Multiplied, views: Sequence[ArrayView], sizes: Sizes, batch: int | None) -> Together | str:
    """Return a product and its maps as one kernel, or why they are not.

    Args:
        step: the product.
        views: what the group reads, in order; of the product anything.
        sizes: the sizes of the symbols.
        batch: how many matrices the product has, None for one.
    """
    shape = step.maps.shape
    own = [_value(dim, sizes) for dim in step.dims]
    if 0 in own or not _value(step.terms, sizes):
        return EMPTY
    count = prod(own[:-1])
    tile = _Tile(batch, count // (batch or 1), own[-1])
    axes = [at for at, dim in enumerate(step.dims) if dim != Dim((), 1)]
    reads: list[tuple[Access, int, Placed]] = []
    for access in shape.accesses:
        if access.is_result or access.number == step.source:
            continue
        placed = tile.placed(access, views[access.number], [own[at] for at in axes], axes[-1:] == [len(own) - 1])
        if placed is None:
            return STRIDES
        reads.append((access, step.maps.inputs[access.number], placed))
    results = [access for access in shape.accesses if access.is_result]
    results.sort(key=lambda access: not step.maps.outputs[access.number].dtype.is_float)
    first, *others = (step.maps.outputs[access.number] for access in results)
    writes = [(one.number, tile.whole(one.dtype), one.dims) for one in others]
    if step.is_wanted:
        writes.append((step.product, tile.whole(_dtype_of(step)), step.whole))
    functions = [FUNCTIONS[op.fn.data] for op in block_of(step.maps.text).ops if isinstance(op, MapOp)]
    if (work := _work(functions)) > _MOST_WORK:
        return TOO_LONG
    source = next(one for one in shape.accesses if not one.is_result and one.number == step.source)
    form = _form((source, *(one for one, _, _ in reads), *results), axes, len(own) - 1, shape.sizes)
    maps = Maps(
        step.maps.text,
        form,
        step.source,
        tuple(placed.beside for _, _, placed in reads),
        tuple(placed.beside for _, placed, _ in writes),
        first.dtype,
        work,
    )
    read = tuple((number, placed) for _, number, placed in reads)
    written = tuple((number, placed) for number, placed, _ in writes)
    cost = sum(one.cost for one in functions)
    whole = tuple(dims for _, _, dims in writes)
    return Together(maps, read, written, whole, first, cost, step.rest is not None)


_MOST_WORK = 48
"""Operations of maps, as steps of epilogues count them: a thread has code for each of its sums."""


def _work(functions: Sequence[Function]) -> int:
    """Return the operations of functions in an epilogue, in those that its steps count: special units compute some."""
    return ceil(sum(max(one.cost / 5, 1) if one.special else one.cost / 2 for one in functions))


def _form(accesses: Sequence[Access], axes: Sequence[int], last: int, sizes: Dims) -> Shape:
    """Return the form of a group for a tile: of the product's dimensions the last is its columns."""
    numbers = range(len(axes))
    columns = tuple(number for number in numbers if axes[number] == last)
    rows = tuple(number for number in numbers if axes[number] != last)
    return Shape(tuple(accesses), (Axis(rows, 0), Axis(columns, 0)), sizes)


def _dtype_of(step: Multiplied) -> DType:
    at = next(n for n, one in enumerate(step.maps.shape.accesses) if not one.is_result and one.number == step.source)
    return step.maps.dtypes[at]


@dataclass(frozen=True, slots=True)
class _Tile:
    """The sizes of a product's result.

    Args:
        batch: matrices, None for one.
        rows: rows of each.
        columns: columns.
    """

    batch: int | None
    rows: int
    columns: int

    def whole(self, dtype: DType) -> Placed:
        """Return a result whose elements lie in order."""
        shape = (self.rows, self.columns) if self.batch is None else (self.batch, self.rows, self.columns)
        strides = (self.rows * self.columns, self.columns, 1)
        return Placed(Beside("full", self.batch is not None, dtype), shape, strides[-len(shape) :])

    def placed(self, access: Access, view: ArrayView, sizes: Sequence[int], has_columns: bool) -> Placed | None:
        """Return an operand along rows and columns, None where it does not lie so.

        Args:
            access: its place.
            view: how it lies.
            sizes: the sizes of the axes.
            has_columns: whether the last axis is the columns.
        """
        steps = [0] * len(sizes)
        for at, stride in zip(access.place, view.strides, strict=True):
            if at != NONE:
                steps[at] = stride
        across = steps.pop() if has_columns else 0
        along = _lines(list(zip(sizes, steps, strict=False)), self.rows)
        if along is None:
            return None
        between, down = along
        is_row = any(at != NONE and at < len(steps) for at in access.place)
        is_col = has_columns and len(steps) in access.place
        batched = self.batch is not None and bool(between)
        axis = "full" if is_row and is_col and down else "row" if is_row and not is_col and down else ""
        axis = axis or ("col" if is_col else "tensor")
        shape = [(self.rows, self.columns)[at] for at in AXES[axis]] or [1]
        strides = [(down, across)[at] for at in AXES[axis]] or [1]
        if batched:
            shape, strides = [self.batch or 1, *shape], [between, *strides]
        return Placed(Beside(axis, batched, view.dtype), tuple(shape), tuple(strides))


def _lines(axes: Sequence[tuple[int, int]], rows: int) -> tuple[int, int] | None:
    """Return the strides from matrix to matrix and from row to row, None where neither is the same everywhere.

    Args:
        axes: size and stride of each axis of rows, the outer ones first.
        rows: rows of a matrix.
    """
    inner: list[tuple[int, int]] = []
    left = list(axes)
    while left and prod(size for size, _ in inner) < rows:
        inner.insert(0, left.pop())
    if (count := prod(size for size, _ in inner)) != rows:  # a matrix ends inside of an axis
        size, stride = inner.pop(0)
        if count % rows or size % (count // rows):
            return None
        inner.insert(0, (size // (count // rows), stride))
        left.append((count // rows, stride * (size // (count // rows))))
    found = _one(left), _one(inner)
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _one(axes: Sequence[tuple[int, int]]) -> int | None:
    """Return the stride of axes as a single one, 0 for none, None where they are not one."""
    size, step = 1, 0
    for extent, stride in reversed(axes):
        if extent == 1:
            continue
        if size > 1 and stride != step * size:
            return None
        size, step = size * extent, stride if size == 1 else step
    return step


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a product.

    Args:
        elements: those of the result.
        terms: of each sum.
        width: bytes of an element.
    """

    elements: int
    terms: int
    width: int

    def is_far(self, target: TargetRecord) -> bool:
        """Return whether CPUs lose time on a result that is written and read again, beside that of the sums."""
        moved = 2 * self.elements * self.width
        sums = seconds(target, 0, products=self.elements * self.terms, element_bytes=self.width)
        return moved >= _LARGE and seconds(target, moved) >= _SHARE * sums


_LARGE = 1 << 24
"""Bytes that CPUs do not keep in their caches."""
_SHARE = 0.1
"""Part of a product's time from which on what is saved is more than what differs between two kernels of it."""


def pays(one: Together, left: Any, right: Any, size: Size, target: TargetRecord) -> bool:
    """Return whether one kernel is predicted to take less time than two.

    Args:
        one: the product with its maps.
        left: the left operand, as `gemm` or `gemm_batched` takes it.
        right: the right one.
        size: the product's.
        target: the machine.
    """
    if not target.simt:
        return size.is_far(target)
    run = multiply(left, right)
    return is_faster(one, run.planned(left, right), run.planned(left, right, one.epilogue()), size, target)


def is_faster(one: Together, alone: Plan, fused: Plan, size: Size, target: TargetRecord) -> bool:
    """Return whether one kernel is predicted to take less time on a GPU than two, from the plans of both.

    It is not where it writes several results, or another kernel reads its result for what is left of the group, as in
    training: a step of two linear layers with a GELU between them takes 1039 µs on an H200, and 828 with two kernels.

    Args:
        one: the product with its maps.
        alone: the plan of the product.
        fused: the plan of both.
        size: the product's.
        target: the machine.
    """
    if one.writes or one.again:
        return False
    beside = sum(_bytes(placed) for _, placed in one.reads)
    moved = size.elements * (size.width + one.first.dtype.bytes) + beside
    apart = alone.seconds + seconds(target, moved, size.elements * one.cost)
    return fused.seconds + beside / target.machine.memory < apart


def multiply(left: Any, right: Any) -> Gemm:
    """Return what multiplies two operands."""
    return gemm if len(left.shape) == len(right.shape) == 2 else gemm_batched


def _bytes(placed: Placed) -> int:
    return prod(placed.shape) * placed.beside.dtype.bytes


def _value(dim: Dim, sizes: Sizes) -> int:
    found = dim.value(sizes)
    assert found is not None, "a call decides all sizes"
    return found


def strided(array: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Return an array's memory in another form, from its first element on."""
    if arrays.is_torch(array):
        return array.as_strided(shape, strides, array.storage_offset())
    steps = tuple(stride * array.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(array, shape, steps, writeable=array.flags.writeable)


class Fused:
    """Runs a product and its maps as one kernel, then what is left of the group.

    Args:
        step: the product.
        one: the kernel.
        sizes: the sizes of the symbols.
        like: makes what is written beside the step's result.
        launch: returns what launches the rest on values.
    """

    __slots__ = ("_launch", "_makers", "_one", "_rest", "_scalars", "_shape", "_step", "kernel")

    def __init__(
        self, step: Multiplied, one: Together, sizes: Sizes, like: Any, launch: Callable[[Values], Run]
    ) -> None:
        self._step, self._one, self._launch = step, one, launch
        self._rest: Run | None = None
        self.kernel: Kernel[..., Any] | None = None
        """The product's kernel, once it has run."""
        shapes = [tuple(_value(dim, sizes) for dim in dims) for dims in (*one.whole, one.first.dims)]
        self._shape = shapes.pop()
        written = zip(shapes, one.writes, strict=True)
        self._makers = [arrays.maker(like, shape, placed.beside.dtype) for shape, (_, placed) in written]
        self._scalars = [_value(dim, sizes) for dim in step.maps.shape.sizes]

    def multiply(self, values: Values) -> None:
        """Compute the product and the maps."""
        like, one = values[0], self._one
        for (number, _), make in zip(one.writes, self._makers, strict=True):
            values[number] = make(like)
        operands = in_one(values[self._step.left], values[self._step.right])
        assert operands is not None, "else there are two kernels"
        given = [strided(values[number], placed.shape, placed.strides) for number, placed in (*one.reads, *one.writes)]
        product = multiply(*operands)
        found = product.inside(*operands, one.epilogue(given, self._scalars))
        self.kernel = product.last
        values[one.first.number] = found.reshape(self._shape)

    def __call__(self, values: Values) -> None:
        """Run the kernels."""
        self.multiply(values)
        if self._step.rest is not None:
            if self._rest is None:
                self._rest = self._launch(values)
            self._rest(values)


class Parted:
    """Runs a product and its maps as two kernels.

    Args:
        step: the product.
        sizes: the sizes of the symbols.
        launch: returns what launches the group on values.
    """

    __slots__ = ("_group", "_launch", "_shape", "_step")

    def __init__(self, step: Multiplied, sizes: Sizes, launch: Callable[[Values], Run]) -> None:
        self._step, self._launch = step, launch
        self._shape = tuple(_value(dim, sizes) for dim in step.dims)
        self._group: Run | None = None

    def multiply(self, values: Values) -> None:
        """Compute the product."""
        step = self._step
        found = values[step.product] = plain(values[step.left], values[step.right])
        values[step.seen] = found.reshape(self._shape)

    def __call__(self, values: Values) -> None:
        """Run the kernels."""
        self.multiply(values)
        if self._group is None:
            self._group = self._launch(values)
        self._group(values)
        self.drop(values)

    def drop(self, values: Values) -> None:
        """Let the product die if nothing else reads it."""
        step = self._step
        if step.seen != step.product:
            values[step.seen] = None
        if not step.is_wanted:
            values[step.product] = None
