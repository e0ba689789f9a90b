"""Writes the grids of exchanged loops (`exchange.py`), with what they need of the programs around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.scf import ForOp, IfOp, YieldOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from tessera.autodiff.tiles.arguments import Arguments, Size
from tessera.autodiff.tiles.emitter import Emitter
from tessera.autodiff.tiles.exchange import Exchange
from tessera.autodiff.tiles.history import steps_of
from tessera.data import dataclass
from tessera.ir.tile.elementwise import (
    ArangeOp,
    CastOp,
    ConstantOp,
    ElementwiseOp,
    SplatOp,
    constant_value,
    is_zero,
)
from tessera.ir.tile.extents import host_extent
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TensorType, element_of, shape_of
from tessera.ir.types import index

LITTLE = (ArangeOp, BroadcastOp, CastOp, ConstantOp, DimOp, ElementwiseOp, LoadOp, ReshapeOp, SplatOp, TransposeOp)
"""Ops that are done again rather than that their results are kept."""
MOST = 2
"""Loads, and functions of tiles, that are done again for one value."""


@dataclass(frozen=True, eq=False)
class Moved:
    """What comes back to a load and is to be moved to a grid of its own.

    Args:
        exchange: the load.
        store: stores it where it comes back, as if it were all that does, until it is moved.
        counter: the loop's counter there.
    """

    exchange: Exchange
    store: StoreOp
    counter: SSAValue

    @property
    def around(self) -> ForOp:
        """The adjoint of the loop."""
        loop = self.store.parent_op()
        assert isinstance(loop, ForOp), "it is in the adjoint of a loop"
        return loop


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a value is kept.

    Args:
        memory: one place for each program.
        each: whether it has one for each iteration.
    """

    memory: SSAValue
    each: bool


class Exchanger:
    """Writes grids of exchanged loads behind the adjoint of their kernel's grid.

    Args:
        emit: writes ops.
        arguments: adds parameters to the adjoint.
        values: what stands for the values of the kernel outside of its grids.
        places: where a program is in the kernel's grid, in the adjoint.
    """

    def __init__(
        self,
        emit: Emitter,
        arguments: Arguments,
        values: Mapping[SSAValue, SSAValue],
        places: Sequence[SSAValue],
    ) -> None:
        self._emit, self._arguments, self._values, self._places = emit, arguments, values, places

    def write(self, moved: Sequence[Moved]) -> None:
        """Move what comes back to loads from the adjoint of their loop to a grid of its own.

        Args:
            moved: the loads, which share what `Exchange.shared` says.
        """
        emit, first = self._emit, moved[0].exchange
        grid, loop, around = first.grid, first.loop, moved[0].around
        body = around.body.block
        known: dict[SSAValue, SSAValue] = {}
        kept = self._kept(first, around, moved)
        start = _again(emit, loop.lb, dict(self._values))
        extents = [_again(emit, extent, dict(self._values)) for extent in grid.extents]
        length = self._length(first, start)
        bounds = [length if axis is None else extents[axis] for axis in first.axes]
        blocks = [_step(loop) if axis is None else grid.block_sizes[axis] for axis in first.axes]
        new = GridOp(bounds, blocks)
        with emit.into(new.body.block):
            for axis, place in zip(first.axes, new.body.block.args, strict=True):
                if axis is None:
                    known[moved[0].counter] = emit.binary("add", start, place)
                    known[body.args[0]] = place  # the number of the iteration follows from it, in each program
                else:
                    known[self._places[axis]] = place
            totals = [emit.zero(one.store.value.type) for one in moved]
            totals = self._sum(first, [*first.others], moved, extents, known, kept, totals)
            for one, total in zip(moved, totals, strict=True):
                store = one.store
                offsets = [_again(emit, offset, dict(known)) for offset in store.offsets]
                tile = emit.cast(total, element_of(one.exchange.load.tensor.type))
                emit.add(StoreOp(tile, store.tensor, offsets, store.size_list, store.dropped))
        emit.add(new)
        for one in moved:
            one.store.detach()
            one.store.erase()

    def _length(self, exchange: Exchange, start: SSAValue) -> SSAValue:
        """Return how far the grid goes in place of the loop."""
        emit, loop, tensor = self._emit, exchange.loop, exchange.load.tensor
        if exchange.whole is None:
            return emit.binary("sub", _again(emit, loop.ub, dict(self._values)), start)
        assert isinstance(tensor.type, TensorType), "a tensor is read"
        size = tensor.type.shape[exchange.whole]
        return emit.index(size) if size >= 0 else emit.value(DimOp(self._values[tensor], exchange.whole))

    def _sum(
        self,
        exchange: Exchange,
        axes: list[int],
        moved: Sequence[Moved],
        extents: Sequence[SSAValue],
        known: Mapping[SSAValue, SSAValue],
        kept: Mapping[SSAValue, Kept],
        totals: Sequence[SSAValue],
    ) -> list[SSAValue]:
        """Return totals and what comes back from all programs along some axes."""
        emit = self._emit
        if not axes:
            return self._guarded(exchange, moved, dict(known), kept, totals)
        axis, rest = axes[0], axes[1:]
        body = Block(arg_types=[index, *[total.type for total in totals]])
        with emit.into(body):
            inner = {**known, self._places[axis]: body.args[0]}
            emit.add(YieldOp(*self._sum(exchange, rest, moved, extents, inner, kept, body.args[1:])))
        block = emit.index(exchange.grid.block_sizes[axis])
        return list(emit.add(ForOp(emit.index(0), extents[axis], block, totals, Region(body))).results)

    def _guarded(
        self,
        exchange: Exchange,
        moved: Sequence[Moved],
        known: dict[SSAValue, SSAValue],
        kept: Mapping[SSAValue, Kept],
        totals: Sequence[SSAValue],
    ) -> list[SSAValue]:
        """Return totals and what comes back from one program, if its loop gets as far as that."""
        emit, around = self._emit, moved[0].around
        place = known.pop(around.body.block.args[0])
        number = emit.binary("floordiv", place, emit.index(_step(exchange.loop)))
        count = _again(emit, around.ub, known)
        known[around.body.block.args[0]] = emit.binary("sub", emit.binary("sub", count, number), emit.index(1))
        if exchange.whole is None:
            return self._added(exchange, moved, known, kept, totals, number)
        then, other = Block(), Block()
        with emit.into(then):
            emit.add(YieldOp(*self._added(exchange, moved, known, kept, totals, number)))
        with emit.into(other):
            emit.add(YieldOp(*totals))
        reached = emit.binary("lt", number, count)
        types = [total.type for total in totals]
        return list(emit.add(IfOp(reached, types, Region(then), Region(other))).results)

    def _added(
        self,
        exchange: Exchange,
        moved: Sequence[Moved],
        known: dict[SSAValue, SSAValue],
        kept: Mapping[SSAValue, Kept],
        totals: Sequence[SSAValue],
        number: SSAValue,
    ) -> list[SSAValue]:
        """Return totals and what comes back from one program: a product of matrices adds to it by itself."""
        emit = self._emit
        numbers = self._numbers(exchange.grid, [known[place] for place in self._places])
        for value, one in kept.items():
            shape, ahead = shape_of(value.type), [*numbers, *([number] if one.each else [])]
            at = [*ahead, *[emit.index(0) for _ in shape]]
            known[value] = emit.value(LoadOp(one.memory, at, [*[1] * len(ahead), *shape], range(len(ahead))))
        found: list[SSAValue] = []
        for one, total in zip(moved, totals, strict=True):
            op = one.store.value.owner
            if isinstance(op, MmaOp) and is_zero(op.acc) and op.acc.type == total.type:
                left, right = (_again(emit, operand, known) for operand in (op.a, op.b))
                found.append(emit.value(MmaOp(left, right, total, op.compute.data)))
            else:
                found.append(emit.binary("add", total, _again(emit, one.store.value, known)))
        return found

    def _numbers(self, grid: GridOp, places: Sequence[SSAValue]) -> list[SSAValue]:
        """Return the number of a program along each axis."""
        emit = self._emit
        pairs = zip(places, grid.block_sizes, strict=True)
        return [at if block == 1 else emit.binary("floordiv", at, emit.index(block)) for at, block in pairs]

    def _kept(self, exchange: Exchange, around: ForOp, moved: Sequence[Moved]) -> dict[SSAValue, Kept]:
        """Keep what an iteration needs of the program around and of those behind it, where that is more than little."""
        body, kept = around.body.block, dict[SSAValue, Kept]()
        known = {*self._places, moved[0].counter, body.args[0]}
        needed = dict.fromkeys(value for one in moved for value in _from_around(one.store.value, body, known))
        for value in needed:
            if value.owner is body:
                steps = steps_of(exchange.loop, exchange.grid)
                assert steps is not None, "a loop that carries has a bound"
                kept[value] = Kept(self._keep(exchange.grid, value, body, body.first_op, [steps], around), True)
            elif not self._is_little(value, known):
                block = around.parent_block()
                assert block is not None, "it is in a program"
                kept[value] = Kept(self._keep(exchange.grid, value, block, around, [], around), False)
        return kept

    def _keep(
        self,
        grid: GridOp,
        value: SSAValue,
        block: Block,
        before: Operation | None,
        steps: Sequence[Size],
        around: ForOp,
    ) -> SSAValue:
        """Store a value of a program, or with `steps` of an iteration, and return the memory where it is."""
        emit, shape = self._emit, shape_of(value.type)
        pairs = zip(grid.extents, grid.block_sizes, strict=True)
        sizes: list[Size] = [["ceildiv", host_extent(extent), ["const", size]] for extent, size in pairs]
        name = f"kept{len(self._arguments.added)}"
        memory = self._arguments.scratch(name, element_of(value.type), [*sizes, *steps], then=shape)
        made = Block()
        with emit.into(made):
            ahead = self._numbers(grid, self._places)
            if steps:
                ahead.append(emit.binary("sub", emit.binary("sub", around.ub, block.args[0]), emit.index(1)))
            at = [*ahead, *[emit.index(0) for _ in shape]]
            emit.add(StoreOp(value, memory, at, [*[1] * len(ahead), *shape], range(len(ahead))))
        for op in list(made.ops):
            op.detach()
            assert before is not None, "the adjoint of a loop does something"
            block.insert_op_before(op, before)
        return memory

    def _is_little(self, value: SSAValue, known: set[SSAValue]) -> bool:
        """Return whether a value of a program is computed again, from what the adjoint only reads, rather than kept."""
        seen, work, much = set[SSAValue](), [value], 0
        while work:
            one = work.pop()
            if one in seen or one in known or _is_everywhere(one):
                continue
            seen.add(one)
            owner = one.owner
            if not isinstance(owner, LITTLE):
                return False
            if isinstance(owner, LoadOp) and not self._arguments.is_read_only(owner.tensor):
                return False
            much += isinstance(owner, LoadOp) or (isinstance(owner, ElementwiseOp) and bool(shape_of(one.type)))
            work += owner.operands
        return much <= MOST


def _step(loop: ForOp) -> int:
    step = constant_value(loop.step)
    assert isinstance(step, int), "the step is known"
    return step


def _from_around(value: SSAValue, block: Block, known: set[SSAValue]) -> list[SSAValue]:
    """Return the values from outside of a block that a value in it depends on, but for those that are known."""
    found, seen, work = list[SSAValue](), set[SSAValue](), [value]
    while work:
        one = work.pop()
        if one in seen or one in known:
            continue
        seen.add(one)
        owner = one.owner
        if isinstance(owner, Operation) and owner.parent_block() is block:
            work += owner.operands
        elif not _is_everywhere(one):
            found.append(one)
    return found


def _is_everywhere(value: SSAValue) -> bool:
    """Return whether a value is one of the kernel, outside of its grids."""
    owner = value.owner
    block = owner if isinstance(owner, Block) else owner.parent_block()
    return block is not None and isinstance(block.parent_op(), KernelOp)


def _again(emit: Emitter, value: SSAValue, known: dict[SSAValue, SSAValue]) -> SSAValue:
    """Emit the ops that a value depends on again, from values that are known, and return it."""
    if value in known:
        return known[value]
    owner = value.owner
    if isinstance(owner, Block) or isinstance(value, BlockArgument) or _is_everywhere(value):
        assert _is_everywhere(value), "all that an iteration depends on is known"
        return value
    for operand in owner.operands:
        _again(emit, operand, known)
    copy = owner.clone({operand: known.get(operand, operand) for operand in owner.operands})
    emit.add(copy)
    known.update(zip(owner.results, copy.results, strict=True))
    return known[value]
