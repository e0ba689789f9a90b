"""split-batches: computes products of batches as one product for each, and what they are made of and lead to likewise.

    %r = scf.for … iter_args(%acc = %zero) -> (!tessera_tile.tile<2x64x64xf32>) {
      %a = tessera_tile.load %A[%c0, %m, %k] [2, 64, 32] : …
      %p = tessera_tile.mma %a, %b, %acc compute "bf16" : … -> !tessera_tile.tile<2x64x64xf32>
      scf.yield %p
    }
    tessera_tile.store %r, %C[%c0, %m, %n] [2, 64, 64] : …
  becomes
    %r:2 = scf.for … iter_args(%acc0 = %zero0, %acc1 = %zero1) -> (…) {
      %a0 = tessera_tile.load %A[%c0, %m, %k] [1, 64, 32] drop [0] : …
      %p0 = tessera_tile.mma %a0, %b0, %acc0 compute "bf16" : … -> !tessera_tile.tile<64x64xf32>
      …

No target multiplies batches, and what schedules know are products of matrices. Sums that loops carry, arithmetic on
them, loads and stores are split with them, so that no tile of a batch is taken apart or put together in a loop. What
other ops read of a batch is put together for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.data import dataclass
from tessera.ir.inserter import Inserter
from tessera.ir.loops import with_arguments, without_unused
from tessera.ir.passes import Pass
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.parts import PartOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.shared import SharedTransposeOp, SharedViewOp
from tessera.ir.tile.types import SharedType, element_of, shape_of
from tessera.ir.types import element_type
from tessera.ir.walking import ops_in
from tessera.numerics import dtypes

_COMPUTED = ElementwiseOp | CastOp | BitcastOp
_INITIAL = 3
"""The place of a loop's first carried value among its operands: bounds and step come before."""


def _is_batched(op: Operation) -> bool:
    return isinstance(op, MmaOp) and len(shape_of(op.result.type)) == 3


def _splits(op: Operation) -> bool:
    """Return whether what an op gives of one member of a batch follows from what it is given of that member."""
    if len(op.results) != 1 or len(shape_of(op.results[0].type)) < 2:
        return False
    after = shape_of(op.results[0].type)
    if isinstance(op, _COMPUTED | SplatOp | LoadOp):
        return True
    if isinstance(op, TransposeOp):
        return op.permutation[0] == 0
    if isinstance(op, ReduceOp):
        return op.axis.data > 0
    if isinstance(op, BroadcastOp | ReshapeOp):
        before = shape_of(op.source.type)
        return len(before) > 1 and (before[0] == after[0] or isinstance(op, BroadcastOp))
    return False


class _Batches:
    """Splits the batches of a module.

    Args:
        module: the module.
    """

    def __init__(self, module: ModuleOp) -> None:
        self._module = module
        self._split: dict[Operation, None] = {}
        self._loops: dict[Operation, set[int]] = {}
        self._pieces: dict[SSAValue, list[SSAValue]] = {}
        self._made: list[Operation] = []
        self._again: list[scf.ForOp] = []

    def apply(self) -> None:
        """Split what is batched, and drop what nothing reads any more."""
        self._find_readers()
        if not self._split:
            return
        self._find_sources()
        for op in ops_in(self._module):
            if isinstance(op, scf.ForOp) and op in self._loops:
                self._loop(op)
            elif op in self._split:
                self._op(op)
            elif isinstance(op, scf.YieldOp):
                self._yield(op)
        for op in reversed(self._made):
            if op.parent is not None and not any(result.uses for result in op.results):
                Rewriter.erase_op(op)
        for loop in reversed(self._again):
            without_unused(loop)

    # What is split

    def _find_readers(self) -> None:
        """Find the products of batches and what they lead to."""
        rest: list[SSAValue] = []
        for op in ops_in(self._module):
            if _is_batched(op):
                self._split[op] = None
                rest += op.results
        while rest:
            for use in list(rest.pop().uses):
                rest += self._split_use(use)

    def _split_use(self, use: Use) -> Iterator[SSAValue]:
        """Split what reads a batch, if it can be; yields the batches that it gives."""
        op, loop = use.operation, use.operation.parent_op()
        if isinstance(op, scf.YieldOp) and isinstance(loop, scf.ForOp):
            carried = self._loops.setdefault(loop, set())
            if use.index not in carried:
                carried.add(use.index)
                yield from (loop.results[use.index], loop.body.block.args[use.index + 1])
        elif op not in self._split and isinstance(op, StoreOp) and use.index == 0:
            self._split[op] = None
        elif op not in self._split and _splits(op):
            self._split[op] = None
            yield op.results[0]

    def _find_sources(self) -> None:
        """Find what products of batches, and what they lead to, are made of and nothing else reads."""
        rest = [*self._split, *self._loops]
        while rest:
            for operand in rest.pop().operands:
                op = operand.owner
                if isinstance(op, Operation) and op not in self._split and _splits(op):
                    if all(self._is_split_use(use) for use in operand.uses):
                        self._split[op] = None
                        rest.append(op)

    def _is_split_use(self, use: Use) -> bool:
        if use.operation in self._loops:
            return use.index - _INITIAL in self._loops[use.operation]
        matrix = isinstance(use.operation, MmaOp) and len(shape_of(use.operation.operands[use.index].type)) == 2
        return use.operation in self._split and not matrix

    # How

    def _loop(self, loop: scf.ForOp) -> None:
        """Let a loop carry each member of a batch."""
        carried = sorted(self._loops[loop])
        insert = Inserter(InsertPoint.before(loop), loop)
        initial = [self._members(loop.iter_args[at], insert) for at in carried]
        first = len(loop.iter_args)
        new = with_arguments(loop, [piece for pieces in initial for piece in pieces])
        self._again.append(new)
        inside = Inserter(InsertPoint.at_start(new.body.block), new)
        after = Inserter(InsertPoint.after(new), new)
        for at, pieces in zip(carried, initial, strict=True):
            last = first + len(pieces)
            self._replace(new.body.block.args[at + 1], list(new.body.block.args[first + 1 : last + 1]), inside)
            self._replace(new.results[at], list(new.results[first:last]), after)
            first = last
        self._loops[new] = set(carried)

    def _yield(self, end: scf.YieldOp) -> None:
        """Yield each member of the batches that a loop carries; the batches themselves stay what they are."""
        loop = end.parent_op()
        if loop not in self._loops or not isinstance(loop, scf.ForOp):
            return
        insert = Inserter(InsertPoint.before(end), end)
        operands = list(end.operands)
        for at in sorted(self._loops[loop]):
            operands += self._members(end.operands[at], insert)
            operands[at] = loop.body.block.args[at + 1]
        end.operands = operands

    def _op(self, op: Operation) -> None:
        """Split an op."""
        insert = Inserter(InsertPoint.before(op), op)
        self._made.append(op)
        if isinstance(op, StoreOp):
            for number in range(shape_of(op.value.type)[0]):
                self._stored(op, number, insert)
            Rewriter.erase_op(op)
            return
        (result,) = op.results
        pieces = [self._computed(op, number, insert) for number in range(shape_of(result.type)[0])]
        self._replace(result, pieces, Inserter(InsertPoint.after(op), op))

    def _computed(self, op: Operation, number: int, insert: Inserter) -> SSAValue:
        """Return what an op gives of one member."""
        if isinstance(op, LoadOp):
            return self._loaded(op, number, insert)
        rest, given = shape_of(op.results[0].type)[1:], self._given(op, number, insert)
        match op:
            case MmaOp():
                return insert.value(MmaOp(given[0], given[1], given[2], op.compute.data))
            case ElementwiseOp():
                return insert.value(ElementwiseOp(op.fn.data, given))
            case CastOp():
                return insert.value(CastOp(given[0], element_of(op.result.type), op.saturate is not None))
            case BitcastOp():
                return insert.value(BitcastOp(given[0], element_of(op.result.type)))
            case SplatOp():
                return insert.value(SplatOp(given[0], rest))
            case TransposeOp():
                return insert.value(TransposeOp(given[0], [axis - 1 for axis in op.permutation[1:]]))
            case ReduceOp():
                return insert.value(ReduceOp(given[0], op.axis.data - 1, op.fn.data))
            case BroadcastOp():
                return insert.value(BroadcastOp(given[0], rest))
            case _:
                return insert.value(ReshapeOp(given[0], rest))

    def _given(self, op: Operation, number: int, insert: Inserter) -> list[SSAValue]:
        """Return what an op is given of one member; a product's matrices are every member's."""
        return [
            value if isinstance(op, MmaOp) and len(shape_of(value.type)) == 2 else self._member(value, number, insert)
            for value in op.operands
        ]

    def _box(self, op: LoadOp | StoreOp, number: int, insert: Inserter) -> tuple[list[SSAValue], list[int], list[int]]:
        """Return the box of one member: offsets, sizes, and the dimensions that it does not have."""
        axis, offsets, sizes = op.kept[0], list(op.offsets), list(op.size_list)
        sizes[axis] = 1
        if number:
            offsets[axis] = insert.binary("add", offsets[axis], insert.constant(number))
        return offsets, sizes, sorted([*op.dropped, axis])

    def _loaded(self, op: LoadOp, number: int, insert: Inserter) -> SSAValue:
        mask = None if op.mask is None else self._member(op.mask, number, insert)
        return insert.value(LoadOp(op.tensor, *self._box(op, number, insert), mask, op.fill))

    def _stored(self, op: StoreOp, number: int, insert: Inserter) -> None:
        value = self._member(op.value, number, insert)
        mask = None if op.mask is None else self._member(op.mask, number, insert)
        insert.add(StoreOp(value, op.tensor, *self._box(op, number, insert), mask))

    # Members of batches

    def _members(self, value: SSAValue, insert: Inserter) -> list[SSAValue]:
        return [self._member(value, number, insert) for number in range(shape_of(value.type)[0])]

    def _member(self, value: SSAValue, number: int, insert: Inserter) -> SSAValue:
        """Return one member of a batch; a batch of one, and what is none, is every member's."""
        shape = shape_of(value.type)
        if isinstance(value.type, SharedType):
            return _view(value, number % shape[0], insert)
        if value in self._pieces:
            return self._pieces[value][number % shape[0]]
        if not shape:
            return value
        zero = insert.constant(0)
        starts = [insert.constant(number % shape[0]), *[zero] * (len(shape) - 1)]
        return insert.value(ReshapeOp(insert.value(PartOp(value, starts, (1, *shape[1:]))), shape[1:]))

    def _replace(self, value: SSAValue, pieces: list[SSAValue], insert: Inserter) -> None:
        """Let all that reads a batch read what its members are put together to."""
        made: list[Operation] = []
        whole = _together(value.type, pieces, insert, made)
        self._made += made
        value.replace_all_uses_with(whole)
        self._pieces[whole] = self._pieces[value] = pieces


def _view(value: SSAValue, number: int, insert: Inserter) -> SSAValue:
    """Return one member of a shared buffer, which may be turned around behind the batch."""
    owner = value.owner
    if isinstance(owner, SharedTransposeOp):
        perm = [axis.data - 1 for axis in owner.perm.data[1:]]
        return insert.value(SharedTransposeOp(_view(owner.source, number, insert), perm))
    return insert.value(SharedViewOp(value, insert.constant(number)))


def _together(type_: Attribute, pieces: list[SSAValue], insert: Inserter, made: list[Operation]) -> SSAValue:
    """Return a batch of members: where the number of one is `i`, its elements."""

    def add(op: Operation) -> SSAValue:
        made.append(op)
        return insert.value(op)

    shape, element = shape_of(type_), element_type(dtypes.i32)
    ones = (1,) * (len(shape) - 1)
    spread = [add(ReshapeOp(piece, (1, *shape[1:]))) for piece in pieces]
    if len(pieces) == 1:
        return spread[0]
    spread = [add(BroadcastOp(piece, shape)) for piece in spread]
    numbers = add(ReshapeOp(add(ArangeOp(len(pieces), element)), (len(pieces), *ones)))
    whole = spread[-1]
    for number in reversed(range(len(pieces) - 1)):
        own = add(SplatOp(add(ConstantOp(number, element)), (len(pieces), *ones)))
        here = add(BroadcastOp(add(ElementwiseOp("eq", [numbers, own])), shape))
        whole = add(ElementwiseOp("select", [here, spread[number], whole]))
    return whole


@dataclass(frozen=True)
class SplitBatchesPass(Pass):
    """Computes products of batches as one product for each."""

    name = "split-batches"

    def apply(self, module: ModuleOp) -> None:
        """Split the batches of every kernel."""
        _Batches(module).apply()
