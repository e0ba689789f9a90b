"""What a graph does when it runs, as data: its groups with the forms of their kernels, calls, products and views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.frontend.group.accesses import Shape, Strides, row_major, shape_of
from tessera.frontend.group.source import dtypes_of
from tessera.graph.overwriting import overwritten
from tessera.ir.graph.compact import compact_text
from tessera.ir.graph.structure import CallOp, GraphOp, GroupOp, ProductOp, ReturnOp, UpdateOp, YieldOp
from tessera.ir.graph.sums import ContractOp, ReduceOp
from tessera.ir.graph.takes import AddRowsOp, StoredOp
from tessera.ir.graph.types import ONE, ZERO, array_type, dims_of, ordered
from tessera.ir.graph.views import BroadcastOp, ConcatOp, ReshapeOp, SliceOp, TransposeOp
from tessera.numerics.dtypes import DType
from tessera.schedule.fuse.epilogues import divided
from tessera.target.dims import Dim

Dims = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
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
    whole: Dims
    dtype: DType
    dims: Dims
    first: Dim


@dataclass(frozen=True, slots=True)
class Group:
    """Ops that are one kernel.

    Args:
        name: the kernel's name.
        text: the ops.
        shape: the kernel's form.
        dtypes: those of what it reads and writes, in the order of the form.
        inputs: numbers of the values that it reads.
        outputs: what it makes.
    """

    name: str
    text: str
    shape: Shape
    dtypes: tuple[DType, ...]
    inputs: tuple[int, ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class Multiplied:
    """A product of matrices and a group of maps of it, which may be one kernel.

    Args:
        left: the number of the left operand.
        right: the number of the right operand.
        product: the number of the product, which is made where something else reads it, or where there are two kernels.
        whole: its sizes.
        is_wanted: whether something else reads it.
        seen: the number of the product as the group reads it.
        dims: its sizes there.
        source: its place among what the maps read.
        terms: the terms of each sum.
        group: what is computed of the product, as a kernel of its own.
        maps: what of that may be computed in the product's kernel.
        rest: what is left then, a kernel that reads what the maps give, None where nothing is.
    """

    left: int
    right: int
    product: int
    whole: Dims
    is_wanted: bool
    seen: int
    dims: Dims
    source: int
    terms: Dim
    group: Group
    maps: Group
    rest: Group | None

    @property
    def operands(self) -> tuple[int, ...]:
        """The numbers of the values that it reads."""
        others = (number for number in self.group.inputs if number != self.seen)
        return tuple(dict.fromkeys((self.left, self.right, *others)))

    @property
    def goals(self) -> tuple[int, ...]:
        """The numbers of what it gives."""
        return (*((self.product,) if self.is_wanted else ()), *(output.number for output in self.group.outputs))


@dataclass(frozen=True, slots=True)
class Called:
    """A call of what has code of its own.

    Args:
        callee: its name.
        operands: numbers of the values that it reads.
        goals: numbers of what it gives.
        lies: whether the elements of each result have to lie side by side, in order.
        types: sizes and dtype of each result.
    """

    callee: str
    operands: tuple[int, ...]
    goals: tuple[int, ...]
    lies: tuple[bool, ...]
    types: tuple[tuple[Dims, DType], ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """What the library of the arrays does: a view, a product, a sum, a concatenation.

    Args:
        kind: the op's name.
        operands: numbers of the values that it reads.
        goal: number of what it gives.
        dims: sizes, of the result.
        starts: sizes, of where a slice begins.
        numbers: dimensions, or steps.
        fn: the function of a reduction.
    """

    kind: str
    operands: tuple[int, ...]
    goal: int
    dims: Dims = ()
    starts: Dims = ()
    numbers: tuple[int, ...] = ()
    fn: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """A call that overwrites arrays, its first ones.

    Args:
        callee: its name.
        operands: numbers of the values that it reads.
        goals: numbers of what it gives, of which the first are what it overwrites.
        in_place: for each array that it overwrites whether it does so where that lies, or in a copy.
    """

    callee: str
    operands: tuple[int, ...]
    goals: tuple[int, ...]
    in_place: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """An array that is written to an argument.

    Args:
        target: the number of the argument.
        value: the number of the array.
    """

    target: int
    value: int


Step = Group | Multiplied | Called | Applied | Changed | Written


@dataclass(frozen=True, slots=True)
class Plan:
    """What a graph does when it runs.

    Args:
        steps: in order.
        gone: for each step the numbers of values that nothing needs after it.
        count: how many values there are.
        results: the numbers of its results.
    """

    steps: tuple[Step, ...]
    gone: tuple[tuple[int, ...], ...]
    count: int
    results: tuple[int, ...]

    @property
    def groups(self) -> list[Group]:
        """The groups that may be kernels of their own, in order."""
        found: list[Group] = []
        for step in self.steps:
            if isinstance(step, Multiplied):
                found += [step.group] if step.rest is None else [step.group, step.rest]
            elif isinstance(step, Group):
                found.append(step)
        return found


def plan_of(
    graph: GraphOp,
    contiguous: Sequence[bool],
    hints: Mapping[str, int],
    loose: Mapping[str, Sequence[bool]],
    changing: Mapping[str, int],
) -> Plan:
    """Return what a graph that is cut into groups does when it runs.

    Args:
        graph: the graph.
        contiguous: whether each argument's elements lie side by side, in order.
        hints: sizes of the symbols at the first call.
        loose: for a call by name whether each of its results lies in another order, the same for the same sizes.
        changing: how many arrays calls overwrite, the first ones, by name; they are their first results.
    """
    over = overwritten(graph.body.block, changing) if changing else {}
    return _Planner(graph, contiguous, hints, loose, over).plan()


class _Planner:
    def __init__(
        self,
        graph: GraphOp,
        contiguous: Sequence[bool],
        hints: Mapping[str, int],
        loose: Mapping[str, Sequence[bool]],
        over: Mapping[Operation, tuple[bool, ...]],
    ) -> None:
        self._graph, self._overwritten = graph, over
        self._hints = hints
        self._loose = loose
        self._numbers: dict[SSAValue, int] = {}
        self._strides: dict[SSAValue, Strides | None] = {}
        self._groups = 0
        for arg, lies in zip(graph.body.block.args, contiguous, strict=True):
            self._number(arg, row_major(dims_of(arg)) if lies else None)

    def plan(self) -> Plan:
        """Return the plan."""
        block = self._graph.body.block
        made = [(op, self._step(op)) for op in block.ops if not isinstance(op, ReturnOp)]
        results = tuple(self._numbers[value] for value in cast(ReturnOp, block.last_op).results_)
        gone = self._gone(results)
        steps = [(step, gone.get(op, ())) for op, step in made if step is not None]
        return Plan(
            tuple(step for step, _ in steps), tuple(numbers for _, numbers in steps), len(self._numbers), results
        )

    def _gone(self, results: Sequence[int]) -> dict[Operation, tuple[int, ...]]:
        """Return the numbers of values that nothing needs after an op."""
        last: dict[int, Operation] = {}
        for op in self._graph.body.block.ops:
            for value in (*op.operands, *op.results):
                last[self._numbers[value]] = op
        found: dict[Operation, tuple[int, ...]] = {}
        kept = {*results, 0}  # results are made beside the first
        for number, op in last.items():
            if number not in kept:
                found[op] = (*found.get(op, ()), number)
        return found

    def _number(self, value: SSAValue, strides: Strides | None) -> int:
        self._strides[value] = strides
        return self._numbers.setdefault(value, len(self._numbers))

    def _lies(self, value: SSAValue) -> bool:
        """Return whether an array's elements lie side by side, in order."""
        dims, strides = dims_of(value), self._strides[value]
        return strides is not None and all(
            dim == ONE or found == wanted for dim, found, wanted in zip(dims, strides, row_major(dims), strict=True)
        )

    def _step(self, op: Operation) -> Step | None:
        """Number an op's results, and return what it does, if that is anything."""
        if isinstance(op, StoredOp):
            self._strides[op.result] = self._strides[op.source]
            self._numbers[op.result] = self._numbers[op.source]
            return None
        if isinstance(op, GroupOp):
            return self._group(op)
        if isinstance(op, ProductOp):
            return self._multiplied(op)
        if isinstance(op, ConcatOp) and is_in_place(op):
            return None  # groups have written its parts
        operands = tuple(self._numbers[value] for value in op.operands)
        if isinstance(op, UpdateOp):
            return Written(*operands)
        if isinstance(op, CallOp):
            return self._changing(op, operands) if op in self._overwritten else self._call(op, operands)
        (result,) = op.results
        is_view = isinstance(op, TransposeOp | BroadcastOp | SliceOp | ReshapeOp)
        goal = self._number(result, self._strides_of(op) if is_view else row_major(dims_of(result)))
        return _applied(op, operands, goal)

    def _group(self, op: GroupOp) -> Group:
        self._groups += 1
        return self._named(op, f"{self._graph.sym_name.data}_{self._groups - 1}")

    def _named(self, op: GroupOp, name: str) -> Group:
        outputs = tuple(map(self._output, op.outputs))
        layouts = [row_major(output.whole) for output in outputs]
        shape = shape_of(op, [self._strides[value] for value in op.inputs], layouts, self._hints)
        inputs = tuple(self._numbers[value] for value in op.inputs)
        return Group(name, compact_text(op.body.block), shape, dtypes_of(op, shape), inputs, outputs)

    def _multiplied(self, op: ProductOp) -> Multiplied:
        inside, group = list(op.body.block.ops), op.group
        for value, argument in zip(op.inputs, op.body.block.args, strict=True):
            self._strides[argument], self._numbers[argument] = self._strides[value], self._numbers[value]
        contract = inside[0]
        assert isinstance(contract, ContractOp), "a product begins with it"
        for one in inside[: inside.index(group)]:
            self._number(one.results[0], row_major(dims_of(one.results[0])))
        seen = inside[inside.index(group) - 1].results[0]
        made = self._group(group)
        for value, result in zip(cast(YieldOp, inside[-1]).values, op.outputs, strict=True):
            self._strides[result], self._numbers[result] = self._strides[value], self._numbers[value]
        is_wanted = len(op.outputs) > len(group.outputs)
        left, right, product = (self._numbers[one] for one in (contract.left, contract.right, contract.result))
        number, terms, whole = self._numbers[seen], dims_of(contract.left)[-1], dims_of(contract.result)
        numbers = left, right, product, whole, is_wanted, number, dims_of(seen)
        return Multiplied(*numbers, *self._divided(group, seen, terms, made))

    def _divided(
        self, group: GroupOp, seen: SSAValue, terms: Dim, whole: Group
    ) -> tuple[int, Dim, Group, Group, Group | None]:
        """Return what a product's step says of its group: where it reads the product, the group, its maps, the rest."""
        division = divided(group, group.inputs.index(seen))
        assert division is not None, "else it is in no product"
        with division as maps:
            source, heads = maps.inputs.index(seen), division.heads
            if division.rest is None:
                return group.inputs.index(seen), terms, whole, whole, None
            left = [value for at, value in enumerate(group.outputs) if at not in heads]
            old = (*(group.outputs[at] for at in heads), *left)
            for value, result in zip(old, (*maps.outputs, *division.rest.outputs), strict=True):
                self._numbers[result], self._strides[result] = self._numbers[value], self._strides[value]
            parts = (self._named(one, whole.name) for one in (maps, division.rest))
            return source, terms, whole, next(parts), replace(next(parts), name=f"{whole.name}_rest")

    def _call(self, op: CallOp, operands: tuple[int, ...]) -> Called:
        loose = self._loose.get(op.callee.data, [False] * len(op.results))
        for result, is_loose in zip(op.results, loose, strict=True):
            self._number(result, None if is_loose else row_major(dims_of(result)))
        goals = tuple(self._numbers[value] for value in op.results)
        types = tuple((dims_of(result), array_type(result).dtype) for result in op.results)
        return Called(op.callee.data, operands, goals, tuple(map(self._lies, op.results)), types)

    def _changing(self, op: CallOp, operands: tuple[int, ...]) -> Changed:
        flags = self._overwritten[op]
        for at, result in enumerate(op.results):
            in_place = at < len(flags) and flags[at]
            self._number(result, self._strides[op.operands[at]] if in_place else row_major(dims_of(result)))
        goals = tuple(self._numbers[value] for value in op.results)
        return Changed(op.callee.data, operands, goals, flags)

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
        joins: list[tuple[ConcatOp, SSAValue]] = []
        whole = value
        while (concat := joined_by(whole)) is not None and is_in_place(concat):
            joins.append((concat, whole))
            whole = concat.result
        if not joins:
            return Output(self._number(value, row_major(dims)), dims, dtype, dims, ZERO)
        strides = row_major(dims_of(whole))
        number = self._number(whole, strides)
        first = ZERO
        for concat, part in joins:
            self._numbers[part] = number
            axis = concat.axis.data
            before = [dims_of(source)[axis] for source in concat.sources[: concat.sources.index(part)]]
            first = first + sum(before, ZERO) * strides[axis]
        return Output(number, dims_of(whole), dtype, dims, ordered(first))


def joined_by(value: SSAValue) -> ConcatOp | None:
    """Return the concatenation that alone reads a value, None where there is none."""
    use = value.get_user_of_unique_use()
    return use if isinstance(use, ConcatOp) else None


def is_in_place(op: ConcatOp) -> bool:
    """Return whether groups write each part of a concatenation where it lies."""
    return all(_is_written(source) and joined_by(source) is op for source in op.sources)


def _is_written(part: SSAValue) -> bool:
    return isinstance(part.owner, GroupOp) or (isinstance(part.owner, ConcatOp) and is_in_place(part.owner))


def _applied(op: Operation, operands: tuple[int, ...], goal: int) -> Applied:
    """Return what an op outside of groups does."""
    kind, dims = op.name.partition(".")[2], dims_of(op.results[0])
    match op:
        case TransposeOp():
            return Applied(kind, operands, goal, numbers=op.permutation)
        case ReshapeOp():
            return Applied(kind, operands, goal, dims)
        case BroadcastOp():
            return Applied(kind, operands, goal, dims, numbers=op.places)
        case SliceOp():
            return Applied(kind, operands, goal, dims, op.first, op.apart)
        case ConcatOp():
            return Applied(kind, operands, goal, numbers=(op.axis.data,))
        case ContractOp():
            return Applied(kind, operands, goal)
        case AddRowsOp():
            return Applied(kind, operands, goal, dims)
        case ReduceOp():
            whole = len(op.reduced) == array_type(op.source).rank
            return Applied(kind, operands, goal, numbers=() if whole else op.reduced, fn=op.fn.data)
        case _:
            raise AssertionError(f"{op.name} stands outside of groups")
