"""Writes the grids of exchanged loops (`exchange.py`), with what they need of the programs around."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xdsl.dialects.scf import ForOp, IfOp, YieldOp
from xdsl.ir import Block, Region, SSAValue

from tessera.autodiff.tiles.arguments import Arguments
from tessera.autodiff.tiles.emitter import Emitter
from tessera.autodiff.tiles.exchange import Exchange
from tessera.autodiff.tiles.history import steps_of
from tessera.autodiff.tiles.kept import Keeper, Kept, again, hoist, is_everywhere, needed_of
from tessera.autodiff.tiles.loops import add_products, hoist_loads, scale_sums
from tessera.autodiff.tiles.turned import turned
from tessera.data import dataclass
from tessera.ir.tile.elementwise import ElementwiseOp, constant_value, is_zero
from tessera.ir.tile.memory import StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.structure import DimOp, GridOp
from tessera.ir.tile.types import TensorType, element_of
from tessera.ir.types import index


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

    @property
    def is_forward(self) -> bool:
        """Whether the adjoint of the loop counts as the loop does, and not from its end."""
        return self.counter is self.around.body.block.args[0]


class Exchanger:
    """Writes grids of exchanged loads behind the adjoint of their kernel's grid.

    Args:
        emit: writes ops.
        arguments: adds parameters to the adjoint.
        values: what stands for the values of the kernel outside of its grids.
        keeper: keeps values of the programs of the kernel's grid, in the adjoint.
    """

    def __init__(
        self,
        emit: Emitter,
        arguments: Arguments,
        values: Mapping[SSAValue, SSAValue],
        keeper: Keeper,
    ) -> None:
        self._emit, self._arguments, self._values = emit, arguments, values
        self._keeper, self._places = keeper, keeper.places
        self._bounded: set[SSAValue] = set()

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
        start = again(emit, loop.lb, dict(self._values))
        extents = [again(emit, extent, dict(self._values)) for extent in grid.extents]
        length = self._length(first, start)
        bounds = [length if axis is None else extents[axis] for axis in first.axes]
        blocks = [_step(loop) if axis is None else grid.block_sizes[axis] for axis in first.axes]
        new = GridOp(bounds, blocks)
        with emit.into(new.body.block):
            for axis, place in zip(first.axes, new.body.block.args, strict=True):
                if axis is None:
                    known[body.args[0]] = place  # the number of the iteration follows from it, in each program
                    known[moved[0].counter] = emit.binary("add", start, place)
                else:
                    known[self._places[axis]] = place
            totals = [emit.zero(one.store.value.type) for one in moved]
            totals = self._sum(first, [*first.others], moved, extents, known, kept, totals)
            for one, total in zip(moved, totals, strict=True):
                store = one.store
                offsets = [again(emit, offset, dict(known)) for offset in store.offsets]
                tile = emit.cast(total, element_of(one.exchange.load.tensor.type))
                emit.add(StoreOp(tile, store.tensor, offsets, store.size_list, store.dropped))
        hoist_loads(new)
        new = turned(new)
        add_products(new)
        scale_sums(new)
        emit.add(new)
        for one in moved:
            one.store.detach()
            one.store.erase()

    def _length(self, exchange: Exchange, start: SSAValue) -> SSAValue:
        """Return how far the grid goes in place of the loop."""
        emit, loop, tensor = self._emit, exchange.loop, exchange.load.tensor
        if exchange.whole is None:
            return emit.binary("sub", again(emit, loop.ub, dict(self._values)), start)
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
        first = self._first(exchange, moved[0], axis, known)
        body = Block(arg_types=[index, *[total.type for total in totals]])
        with emit.into(body):
            inner = {**known, self._places[axis]: body.args[0]}
            emit.add(YieldOp(*self._sum(exchange, rest, moved, extents, inner, kept, body.args[1:])))
        block = emit.index(exchange.grid.block_sizes[axis])
        return list(emit.add(ForOp(first, extents[axis], block, totals, Region(body))).results)

    def _first(self, exchange: Exchange, moved: Moved, axis: int, known: Mapping[SSAValue, SSAValue]) -> SSAValue:
        """Return the first program along an axis whose loop gets as far as a slice, if that can be told ahead."""
        emit, zero = self._emit, self._emit.index(0)
        if exchange.whole is None or not moved.is_forward:
            return zero
        ends = [end for end in _least_of(moved.around.ub) if not self._is_beyond(end, exchange)]
        reaches = [_beyond(end, self._places[axis]) for end in ends]
        if not all(one is not None and (isinstance(one, int) or is_everywhere(one)) for one in reaches):
            return zero
        self._bounded.add(moved.counter)
        first, block = zero, emit.index(exchange.grid.block_sizes[axis])
        for reach in reaches:
            assert reach is not None, "it is known"
            # A program that starts at p gets as far as c if p + reach > c.
            reach = emit.index(reach) if isinstance(reach, int) else reach
            before = emit.binary("floordiv", emit.binary("sub", known[moved.counter], reach), block)
            start = emit.binary("mul", emit.binary("add", before, emit.index(1)), block)
            first = emit.binary("maximum", first, start)
        return first

    def _is_beyond(self, end: SSAValue, exchange: Exchange) -> bool:
        """Return whether the end of a loop is that of the tensor which it goes along."""
        along, tensor = exchange.whole, exchange.load.tensor
        assert along is not None, "it goes along one"
        assert isinstance(tensor.type, TensorType), "a tensor is read"
        if tensor.type.shape[along] >= 0 or not isinstance(end.owner, DimOp):
            return constant_value(end) == tensor.type.shape[along]
        size = self._arguments.size_of(end.owner.tensor, end.owner.axis.data)
        return size == self._arguments.size_of(self._values[tensor], along)

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
        if moved[0].is_forward:
            return self._reached(exchange, moved, known, kept, totals)
        place = known.pop(around.body.block.args[0])
        number = emit.binary("floordiv", place, emit.index(_step(exchange.loop)))
        count = again(emit, around.ub, known)
        known[around.body.block.args[0]] = emit.binary("sub", emit.binary("sub", count, number), emit.index(1))
        if exchange.whole is None:
            return self._added(exchange, moved, known, kept, totals, number)
        reached = emit.binary("lt", number, count)
        return self._where(reached, lambda: self._added(exchange, moved, known, kept, totals, number), totals)

    def _reached(
        self,
        exchange: Exchange,
        moved: Sequence[Moved],
        known: dict[SSAValue, SSAValue],
        kept: Mapping[SSAValue, Kept],
        totals: Sequence[SSAValue],
    ) -> list[SSAValue]:
        """Return totals and what comes back from one program, whose loop counts as the kernel's does."""
        emit, around = self._emit, moved[0].around
        if exchange.whole is None or moved[0].counter in self._bounded:
            return self._added(exchange, moved, known, kept, totals)
        reached = emit.binary("lt", known[moved[0].counter], again(emit, around.ub, known))
        return self._where(reached, lambda: self._added(exchange, moved, dict(known), kept, totals), totals)

    def _where(
        self, reached: SSAValue, added: Callable[[], Sequence[SSAValue]], totals: Sequence[SSAValue]
    ) -> list[SSAValue]:
        """Return what is added up where a program is reached, and totals as they are elsewhere."""
        emit, then, other = self._emit, Block(), Block()
        with emit.into(then):
            emit.add(YieldOp(*added()))
        with emit.into(other):
            emit.add(YieldOp(*totals))
        types = [total.type for total in totals]
        return list(emit.add(IfOp(reached, types, Region(then), Region(other))).results)

    def _added(
        self,
        exchange: Exchange,
        moved: Sequence[Moved],
        known: dict[SSAValue, SSAValue],
        kept: Mapping[SSAValue, Kept],
        totals: Sequence[SSAValue],
        number: SSAValue | None = None,
    ) -> list[SSAValue]:
        """Return totals and what comes back from one program: a product of matrices adds to it by itself."""
        emit = self._emit
        for value, one in kept.items():
            known[value] = self._keeper.load(value, one, [known[place] for place in self._places], number)
        found: list[SSAValue] = []
        for one, total in zip(moved, totals, strict=True):
            op = one.store.value.owner
            if isinstance(op, MmaOp) and is_zero(op.acc) and op.acc.type == total.type:
                left, right = (again(emit, operand, known) for operand in (op.a, op.b))
                found.append(emit.value(MmaOp(left, right, total, op.compute.data)))
            else:
                found.append(emit.binary("add", total, again(emit, one.store.value, known)))
        return found

    def _kept(self, exchange: Exchange, around: ForOp, moved: Sequence[Moved]) -> dict[SSAValue, Kept]:
        """Keep what an iteration needs of the program around and of those behind it, where that is more than little."""
        body, kept = around.body.block, dict[SSAValue, Kept]()
        hoist(around)
        known = {*self._places, moved[0].counter, body.args[0]}
        needed = dict.fromkeys(value for one in moved for value in needed_of(one.store.value, body, known))
        for value in needed:
            if value.owner is body:
                steps = steps_of(exchange.loop, exchange.grid)
                assert steps is not None, "a loop that carries has a bound"
                kept[value] = self._keeper.of_iteration(value, around, steps)
            elif not self._keeper.is_little(value, known):
                kept[value] = self._keeper.of_program(value, around)
        return kept


def _step(loop: ForOp) -> int:
    step = constant_value(loop.step)
    assert isinstance(step, int), "the step is known"
    return step


def _least_of(value: SSAValue) -> list[SSAValue]:
    """Return the values of which a value is the least."""
    op = value.owner
    if isinstance(op, ElementwiseOp) and op.fn.data == "minimum":
        return [one for arg in op.args for one in _least_of(arg)]
    return [value]


def _beyond(end: SSAValue, place: SSAValue) -> SSAValue | int | None:
    """Return how far an end is beyond a place, None where it is not by a number that all programs have alike."""
    op = end.owner
    if end is place:
        return 0
    if isinstance(op, ElementwiseOp) and op.fn.data == "add" and place in op.args:
        rest = next((arg for arg in op.args if arg is not place), None)
        number = None if rest is None else constant_value(rest)
        return int(number) if number is not None else rest
    return None
