"""Exchanges loops, so that a program owns the part of a gradient that it adds to.

In a product of matrices, each program of the grid `(m, n)` reads slices of A in a loop over k, and so do all programs
along n. What comes back to one slice is a sum over n. So a grid `(m, k)` of its own computes it, in which each program
loops over n and adds up in registers: a product of matrices again.

That is done for a slice in a loop of sums, `c + f` (whose cotangent is the same in all iterations), which moves with
some axes of the grid and with the loop by whole blocks, and not at all with the other axes. What an iteration needs of
the program around is computed again where it is little, such as a load of a cotangent, and kept in memory else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.scf import ForOp, YieldOp
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue

from tessera.autodiff.tiles.activity import Activity
from tessera.autodiff.tiles.arguments import Arguments
from tessera.autodiff.tiles.emitter import Emitter
from tessera.autodiff.tiles.footprints import Footprint, Form, is_uniform
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
    """

    load: LoadOp
    loop: ForOp
    grid: GridOp
    axes: tuple[int | None, ...]
    others: tuple[int, ...]
    covers: bool


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
    if not _is_of_sums(loop, activity) or not _is_uniform(loop, grid):
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
    others = tuple(axis for axis in range(len(grid.block_sizes)) if axis not in axes)
    return Exchange(op, loop, grid, tuple(sorted(axes, key=axes.__getitem__)), others, covers)


def _is_of_sums(loop: ForOp, activity: Activity) -> bool:
    """Return whether iterations of a loop's adjoint are independent: it only adds up, without stores and regions."""
    end = loop.body.block.last_op
    assert end is not None, "a loop's body ends with its yield"
    ops = [op for op in loop.body.block.ops if op is not end]
    if any(op.regions or (effect_of(op) > Effect.RANDOM and not reads_only(op)) for op in ops):
        return False
    for argument, result in zip(loop.body.block.args[1:], end.operands, strict=True):
        uses, op = list(argument.uses), result.owner
        if len(uses) != 1 or uses[0].operation is not op or len(list(result.uses)) != 1:
            return False
        added = isinstance(op, ElementwiseOp) and op.fn.data == "add" and op.args[0] is not op.args[1]
        if not added and not (isinstance(op, MmaOp) and op.acc is argument):
            return False
    inside = {*ops}
    used = {v for op in ops for v in op.operands if v in activity and not isinstance(v.type, TensorType)}
    return all(value.owner in inside or value.owner is loop.body.block for value in used)


def _is_uniform(loop: ForOp, grid: GridOp) -> bool:
    """Return whether a loop is the same in all programs, and its length known before a launch."""
    step = constant_value(loop.step)
    if not isinstance(step, int) or step < 1 or not (is_uniform(loop.lb, grid) and is_uniform(loop.ub, grid)):
        return False
    try:
        for value in (loop.lb, loop.ub, *grid.extents):
            host_extent(value)
    except NotOnHost:
        return False
    return True


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
        moves = form.steps[loop][0] == constant_value(loop.step) == width
        return moves and constant_value(loop.lb) == 0 and _is_size(loop.ub, op, dim, kernel)
    return 0 <= size <= width


def _is_size(extent: SSAValue, op: LoadOp, dim: int, kernel: KernelOp) -> bool:
    """Return whether an extent is the size of a dimension: of the same name, or the same number."""
    assert isinstance(op.tensor.type, TensorType), "a tensor is read"
    if isinstance(extent.owner, DimOp):
        name = kernel.info_of(extent.owner.tensor).dims[extent.owner.axis.data]
        return name == kernel.info_of(op.tensor).dims[dim]
    return constant_value(extent) == op.tensor.type.shape[dim]


class Exchanger:
    """Writes the grids of exchanged loads behind that of their kernel's grid.

    Args:
        emit: writes ops.
        arguments: adds parameters to the adjoint.
        values: what stands for the values of the kernel outside of its grids.
    """

    def __init__(self, emit: Emitter, arguments: Arguments, values: Mapping[SSAValue, SSAValue]) -> None:
        self._emit, self._arguments, self._values = emit, arguments, values

    def write(self, exchange: Exchange, store: StoreOp, places: Sequence[SSAValue], counter: SSAValue) -> None:
        """Move what comes back to a load from the adjoint of its loop to a grid of its own.

        Args:
            exchange: the load.
            store: stores it, in the adjoint's loop, as if it were all that comes back to the slice.
            places: where a program is in the kernel's grid, in the adjoint.
            counter: the loop's counter there.
        """
        emit, grid, loop = self._emit, exchange.grid, exchange.loop
        around = store.parent_block()
        assert around is not None, "it is in the adjoint of a loop"
        needed = self._brought(exchange, around, store, places, counter)
        first, after = (_again(emit, value, dict(self._values)) for value in (loop.lb, loop.ub))
        extents = [_again(emit, extent, dict(self._values)) for extent in grid.extents]
        step = constant_value(loop.step)
        assert isinstance(step, int), "the step is known"
        bounds = [emit.binary("sub", after, first) if axis is None else extents[axis] for axis in exchange.axes]
        blocks = [step if axis is None else grid.block_sizes[axis] for axis in exchange.axes]
        new = GridOp(bounds, blocks)
        known: dict[SSAValue, SSAValue] = {}
        with emit.into(new.body.block):
            for axis, place in zip(exchange.axes, new.body.block.args, strict=True):
                if axis is None:
                    known[counter] = place if constant_value(loop.lb) == 0 else emit.binary("add", first, place)
                else:
                    known[places[axis]] = place
            start = emit.zero(store.value.type)
            total = self._sum(exchange, list(exchange.others), store, places, extents, known, needed, start)
            offsets = [_again(emit, offset, dict(known)) for offset in store.offsets]
            tile = emit.cast(total, element_of(exchange.load.tensor.type))
            emit.add(StoreOp(tile, store.tensor, offsets, store.size_list, store.dropped))
        emit.add(new)
        store.detach()
        store.erase()

    def _sum(
        self,
        exchange: Exchange,
        axes: list[int],
        store: StoreOp,
        places: Sequence[SSAValue],
        extents: Sequence[SSAValue],
        known: Mapping[SSAValue, SSAValue],
        needed: Mapping[SSAValue, SSAValue],
        total: SSAValue,
    ) -> SSAValue:
        """Return a total and what comes back from all programs along some axes."""
        emit = self._emit
        if not axes:
            return self._added(exchange, store, places, dict(known), needed, total)
        axis, rest = axes[0], axes[1:]
        body = Block(arg_types=[index, total.type])
        with emit.into(body):
            inner = {**known, places[axis]: body.args[0]}
            emit.add(YieldOp(self._sum(exchange, rest, store, places, extents, inner, needed, body.args[1])))
        block = emit.index(exchange.grid.block_sizes[axis])
        return emit.value(ForOp(emit.index(0), extents[axis], block, [total], Region(body)))

    def _added(
        self,
        exchange: Exchange,
        store: StoreOp,
        places: Sequence[SSAValue],
        known: dict[SSAValue, SSAValue],
        needed: Mapping[SSAValue, SSAValue],
        total: SSAValue,
    ) -> SSAValue:
        """Return a total and what comes back from one program: a product of matrices adds to it by itself."""
        emit = self._emit
        numbers = [
            _number(emit, known[place], block) for place, block in zip(places, exchange.grid.block_sizes, strict=True)
        ]
        for value, memory in needed.items():
            shape = shape_of(value.type)
            box = [*[1] * len(numbers), *shape]
            at = [*numbers, *[emit.index(0) for _ in shape]]
            known[value] = emit.value(LoadOp(memory, at, box, range(len(numbers))))
        op = store.value.owner
        if isinstance(op, MmaOp) and is_zero(op.acc) and op.acc.type == total.type:
            left, right = (_again(emit, operand, known) for operand in (op.a, op.b))
            return emit.value(MmaOp(left, right, total, op.compute.data))
        return emit.binary("add", total, _again(emit, store.value, known))

    def _brought(
        self,
        exchange: Exchange,
        around: Block,
        store: StoreOp,
        places: Sequence[SSAValue],
        counter: SSAValue,
    ) -> dict[SSAValue, SSAValue]:
        """Keep what an iteration needs of the program around and what is more than little; return where it is."""
        emit, grid = self._emit, exchange.grid
        loop = around.parent_op()
        assert loop is not None, "the adjoint of a loop is a loop"
        program = loop.parent_block()
        assert program is not None, "it is in a program"
        kept: dict[SSAValue, SSAValue] = {}
        for value in _from_around(store.value, around, {*places, counter}):
            if self._is_little(value, {*places}):
                continue
            shape, element = shape_of(value.type), element_of(value.type)
            sizes = [
                ["ceildiv", host_extent(extent), ["const", block]]
                for extent, block in zip(grid.extents, grid.block_sizes, strict=True)
            ]
            memory = self._arguments.scratch(f"kept{len(self._arguments.added)}", element, sizes, then=shape)
            block = Block()
            with emit.into(block):
                numbers = [_number(emit, place, size) for place, size in zip(places, grid.block_sizes, strict=True)]
                at = [*numbers, *[emit.index(0) for _ in shape]]
                emit.add(StoreOp(value, memory, at, [*[1] * len(numbers), *shape], range(len(numbers))))
            for op in list(block.ops):
                op.detach()
                program.insert_op_before(op, loop)
            kept[value] = memory
        return kept

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


def _number(emit: Emitter, place: SSAValue, block: int) -> SSAValue:
    """Return the number of a program along an axis."""
    return place if block == 1 else emit.binary("floordiv", place, emit.index(block))


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
