"""Exchanges loops, so that a program owns the part of a gradient that it adds to.

In a product of matrices, each program of the grid `(m, n)` reads slices of A in a loop over k, and so do all programs
along n. What comes back to one slice is a sum over n. So a grid `(m, k)` of its own computes it, in which each program
loops over n and adds up in registers: a product of matrices again.

That is done for a slice that moves with some axes of the grid and with a loop by whole blocks, and not at all with the
other axes. What an iteration needs of the program around is computed again where it is little, such as a load of a
cotangent, and kept in memory else. So is what the adjoint of the loop carries to it, where that is small beside the
slice: rows, as of an online softmax. Slices that move alike share a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects.scf import ForOp, IfOp, YieldOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from tessera.autodiff.tiles.activity import Activity
from tessera.autodiff.tiles.arguments import Arguments, Size
from tessera.autodiff.tiles.decays import decays_of
from tessera.autodiff.tiles.emitter import Emitter
from tessera.autodiff.tiles.footprints import Footprint, Form, is_uniform
from tessera.autodiff.tiles.history import steps_of
from tessera.data import dataclass
from tessera.ir.effects import Effect, effect_of, reads_only
from tessera.ir.tile.elementwise import (
    ArangeOp,
    CastOp,
    ConstantOp,
    ElementwiseOp,
    SplatOp,
    constant_value,
    is_zero,
)
from tessera.ir.tile.extents import NotOnHost, host_extent
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TensorType, element_of, shape_of
from tessera.ir.types import index

LITTLE = (ArangeOp, BroadcastOp, CastOp, ConstantOp, DimOp, ElementwiseOp, LoadOp, ReshapeOp, SplatOp, TransposeOp)
"""Ops that are done again rather than that their results are kept."""
SMALL = 4
"""How often what is carried to an iteration fits into the slice that it reads, at least."""
MOST = 2
"""Loads, and functions of tiles, that are done again for one value."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A load whose adjoint has a grid of its own.

    Args:
        load: the load.
        loop: the loop around it.
        grid: the grid around that.
        axes: the axes of the grid that the slice moves with, and None for the loop, in the order of the dimensions.
        others: the other axes of the grid.
        covers: whether all slices together are known to be all of the tensor.
        whole: the dimension that the loop goes along, where it may leave out blocks of it; None where it does not.
        alone: whether iterations of the loop's adjoint are independent.
    """

    load: LoadOp
    loop: ForOp
    grid: GridOp
    axes: tuple[int | None, ...]
    others: tuple[int, ...]
    covers: bool
    whole: int | None
    alone: bool

    @property
    def shared(self) -> tuple[object, ...]:
        """What slices of one grid have in common."""
        return self.loop, self.axes, self.whole


def exchange_of(
    load: Footprint, grid: GridOp, apart: set[int], activity: Activity, kernel: KernelOp
) -> Exchange | None:
    """Return how the adjoint of a load can have a grid of its own, None where it cannot.

    Args:
        load: the elements that it reads.
        grid: the grid around.
        apart: the axes along which no two programs read the same element.
        activity: what moves with what.
        kernel: the kernel.
    """
    op, loop = load.op, load.op.parent_op()
    if not isinstance(op, LoadOp) or not isinstance(loop, ForOp):
        return None
    if loop.parent_op() is not grid or grid.guard is not None:
        return None
    if not _is_plain(loop) or not _is_known(loop, grid):
        return None
    axes: dict[int | None, int] = {}
    for dim, form in enumerate(load.forms):
        counted = [key for key in form.steps if isinstance(key, ForOp)]
        if form.wild or form.odd or len(form.programs) + len(counted) > 1 or (counted and counted != [loop]):
            return None
        for axis in [*form.programs, *(None for _ in counted)]:
            if axis in axes or not _is_blocked(form, loop):
                return None
            axes[axis] = dim
    if {*axes} != {*apart, None}:
        return None
    covers = all(_is_covered(op, form, grid, loop, dim, kernel) for dim, form in enumerate(load.forms))
    alone, uniform = _is_of_sums(loop, activity), _is_uniform(loop, grid)
    whole = None if uniform else axes[None]
    if whole is not None and not _moves_from_start(op, load.forms[whole], loop, whole):
        return None
    if not alone and (steps_of(loop, grid) is None or not _is_small(loop, activity, op)):
        return None
    others = tuple(axis for axis in range(len(grid.block_sizes)) if axis not in axes)
    return Exchange(op, loop, grid, tuple(sorted(axes, key=axes.__getitem__)), others, covers, whole, alone)


def _is_plain(loop: ForOp) -> bool:
    """Return whether a loop is without stores and regions."""
    end = loop.body.block.last_op
    ops = [op for op in loop.body.block.ops if op is not end]
    return not any(op.regions or (effect_of(op) > Effect.RANDOM and not reads_only(op)) for op in ops)


def _is_of_sums(loop: ForOp, activity: Activity) -> bool:
    """Return whether iterations of a loop's adjoint are independent: the loop only adds up."""
    end = loop.body.block.last_op
    assert end is not None, "a loop's body ends with its yield"
    for argument, result in zip(loop.body.block.args[1:], end.operands, strict=True):
        uses, op = list(argument.uses), result.owner
        if len(uses) != 1 or uses[0].operation is not op or len(list(result.uses)) != 1:
            return False
        added = isinstance(op, ElementwiseOp) and op.fn.data == "add" and op.args[0] is not op.args[1]
        if not added and not (isinstance(op, MmaOp) and op.acc is argument):
            return False
    return not _outer(loop, activity)


def _outer(loop: ForOp, activity: Activity) -> set[SSAValue]:
    """Return the values from outside of a loop that something comes back to from it."""
    inside = {*loop.body.block.ops}
    used = {v for op in inside for v in op.operands if v in activity and not isinstance(v.type, TensorType)}
    return {value for value in used if value.owner not in inside and value.owner is not loop.body.block}


def _is_small(loop: ForOp, activity: Activity, load: LoadOp) -> bool:
    """Return whether what the adjoint of a loop carries to an iteration is small beside a slice."""
    carried = [n for n, argument in enumerate(loop.body.block.args[1:]) if argument in activity]
    rows = {one.carried: one.exponent for one in decays_of(loop, carried) if one.exponent in activity}
    values = [rows.get(n, loop.body.block.args[n + 1]) for n in carried]
    return sum(prod(shape_of(value.type)) for value in values) * SMALL <= prod(load.size_list)


def _is_known(loop: ForOp, grid: GridOp) -> bool:
    """Return whether the sizes of a grid and the step of a loop are known before a launch."""
    step = constant_value(loop.step)
    try:
        for value in grid.extents:
            host_extent(value)
    except NotOnHost:
        return False
    return isinstance(step, int) and step >= 1


def _is_uniform(loop: ForOp, grid: GridOp) -> bool:
    """Return whether a loop is the same in all programs, and its length known before a launch."""
    if not (is_uniform(loop.lb, grid) and is_uniform(loop.ub, grid)):
        return False
    try:
        for value in (loop.lb, loop.ub):
            host_extent(value)
    except NotOnHost:
        return False
    return True


def _moves_from_start(op: LoadOp, form: Form, loop: ForOp, dim: int) -> bool:
    """Return whether a loop goes along a dimension from its start, by slices side by side."""
    step = constant_value(loop.step)
    plain = not (form.constant or form.uniform or form.programs) and constant_value(loop.lb) == 0
    return plain and form.steps[loop][0] == step == op.size_list[dim]


def _is_blocked(form: Form, loop: ForOp) -> bool:
    """Return whether an index moves by at least as much as a tile has along it."""
    (move,) = [*form.programs.values(), *(form.steps[loop][0] for _ in [0] if loop in form.steps)]
    rest = Form(form.constant, steps={key: step for key, step in form.steps.items() if key is not loop})
    return rest.range[1] - rest.range[0] < abs(move)


def _is_covered(op: LoadOp, form: Form, grid: GridOp, loop: ForOp, dim: int, kernel: KernelOp) -> bool:
    """Return whether the slices go along all of a dimension."""
    assert isinstance(op.tensor.type, TensorType), "a tensor is read"
    size, width = op.tensor.type.shape[dim], op.size_list[dim]
    if form.constant or form.uniform:
        return False
    if form.programs:
        ((axis, move),) = form.programs.items()
        return move == grid.block_sizes[axis] == width and _is_size(grid.extents[axis], op, dim, kernel)
    if loop in form.steps:
        along = _moves_from_start(op, form, loop, dim)
        return along and (_is_size(loop.ub, op, dim, kernel) or not _is_uniform(loop, grid))
    return 0 <= size <= width


def _is_size(extent: SSAValue, op: LoadOp, dim: int, kernel: KernelOp) -> bool:
    """Return whether an extent is the size of a dimension: of the same name, or the same number."""
    assert isinstance(op.tensor.type, TensorType), "a tensor is read"
    if isinstance(extent.owner, DimOp):
        name = kernel.info_of(extent.owner.tensor).dims[extent.owner.axis.data]
        return name == kernel.info_of(op.tensor).dims[dim]
    return constant_value(extent) == op.tensor.type.shape[dim]


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
