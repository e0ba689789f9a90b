"""Keeps what loops carry at each iteration, in memory that each program has of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.dialects.builtin import IndexType
from xdsl.dialects.scf import ForOp
from xdsl.ir import Block, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from tessera.autodiff.tiles.arguments import Arguments, Size
from tessera.autodiff.tiles.emitter import Emitter
from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, constant_value
from tessera.ir.tile.extents import NotOnHost, host_extent
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.types import dtype_of, element_type, index
from tessera.numerics import dtypes
from tessera.target.extents import Extent

Interval = tuple[Extent, Extent]


class History:
    """The memory of one grid's programs.

    Args:
        emit: writes ops.
        arguments: adds parameters to the adjoint.
        number: the number of the grid.
        grid: the kernel's grid.
        places: the arguments of the adjoint's.
        split: the axes that the adjoint goes along in parts.
    """

    def __init__(
        self,
        emit: Emitter,
        arguments: Arguments,
        number: int,
        grid: GridOp,
        places: Sequence[SSAValue],
        split: Collection[int],
    ) -> None:
        self._emit, self._arguments, self._number = emit, arguments, number
        self._grid, self._places, self._split = grid, places, split

    def keep(self, op: ForOp, loop: ForOp, needed: Sequence[int], number: SSAValue) -> Sequence[SSAValue] | None:
        """Keep some of what a loop carries, and emit how it is loaded.

        Args:
            op: the kernel's loop.
            loop: the one that computes it again.
            needed: the numbers of what is needed.
            number: the number of an iteration, in the adjoint of the loop.

        Returns:
            What it carries there; None where no bound of its length is known.
        """
        steps = steps_of(op, self._grid)
        if steps is None:
            return None
        sizes = [*map(self._size, range(len(self._places))), steps]
        found: list[SSAValue] = []
        for n in needed:
            held = loop.body.block.args[n + 1]
            element = element_of(held.type)
            kept = element_type(dtypes.i64) if isinstance(element, IndexType) else element
            shape = shape_of(held.type)
            memory = self._arguments.scratch(f"history{len(self._arguments.added)}", kept, sizes, then=shape)
            self._store(loop, held, memory)
            box = [*[1] * len(sizes), *shape]
            loaded = self._emit.value(LoadOp(memory, self._at(number, len(shape)), box, range(len(sizes))))
            found.append(self._emit.cast(loaded, element))
        return found

    def _size(self, axis: int) -> Size:
        """Return how many programs there are along an axis."""
        if axis in self._split:
            return ["chunks", self._number, axis]
        return ["ceildiv", host_extent(self._grid.extents[axis]), ["const", self._grid.block_sizes[axis]]]

    def _at(self, number: SSAValue, rank: int) -> list[SSAValue]:
        """Return where the values of an iteration are."""
        emit, programs = self._emit, list[SSAValue]()
        for axis, place in enumerate(self._places):
            block = self._grid.block_sizes[axis]
            alone = axis in self._split or block == 1
            programs.append(place if alone else emit.binary("floordiv", place, emit.index(block)))
        return [*programs, number, *[emit.index(0) for _ in range(rank)]]

    def _store(self, loop: ForOp, held: SSAValue, memory: SSAValue) -> None:
        """Store what a loop carries at the start of each iteration."""
        emit, block, shape = self._emit, Block(), shape_of(held.type)
        with emit.into(block):
            number = emit.binary("floordiv", emit.binary("sub", loop.body.block.args[0], loop.lb), loop.step)
            places = self._at(number, len(shape))
            box, ahead = [*[1] * (len(places) - len(shape)), *shape], len(places) - len(shape)
            value = emit.cast(held, element_of(memory.type))
            emit.add(StoreOp(value, memory, places, box, range(ahead)))
        for op in reversed(list(block.ops)):
            op.detach()
            Rewriter.insert_op(op, InsertPoint.at_start(loop.body.block))


def steps_of(op: ForOp, grid: GridOp) -> Extent | None:
    """Return a bound of the number of a loop's iterations."""
    first, after, step = (_interval(value, grid) for value in (op.lb, op.ub, op.step))
    if first is None or after is None or step is None:
        return None
    length = ["ceildiv", ["sub", after[1], first[0]], ["maximum", step[0], ["const", 1]]]
    return ["maximum", length, ["const", 1]]


def _interval(value: SSAValue, grid: GridOp) -> Interval | None:
    """Return the least and the most that an integer is in any program, as the host computes it; None if unknown."""
    try:
        known = host_extent(value)
        return known, known
    except NotOnHost:
        pass
    owner = value.owner
    if isinstance(owner, Block):
        return _of_argument(value, owner, grid)
    if isinstance(owner, CastOp):
        source, target = (dtype_of(element_of(one.type)) for one in (owner.source, owner.result))
        holds_all = source.kind == target.kind == "int" and target.bits >= source.bits
        return _interval(owner.source, grid) if holds_all else None
    if not isinstance(owner, ElementwiseOp) or value.type != index:
        return None
    return _of_function(owner, grid)


def _of_argument(value: SSAValue, block: Block, grid: GridOp) -> Interval | None:
    parent, place = block.parent_op(), list(block.args).index(value)  # pyright: ignore[reportArgumentType]
    if parent is grid:
        return ["const", 0], ["sub", host_extent(grid.extents[place]), ["const", 1]]
    if isinstance(parent, ForOp) and not place:
        first, after = _interval(parent.lb, grid), _interval(parent.ub, grid)
        return None if first is None or after is None else (first[0], ["sub", after[1], ["const", 1]])
    return None


def _of_function(op: ElementwiseOp, grid: GridOp) -> Interval | None:
    fn, args = op.fn.data, [found for arg in op.args if (found := _interval(arg, grid)) is not None]
    if len(args) != 2 or len(op.args) != 2:
        return None
    low, high = args[0]
    least, most = args[1]
    number, first = constant_value(op.args[1]), constant_value(op.args[0])
    match fn:
        case "add" | "minimum" | "maximum":
            return [fn, low, least], [fn, high, most]
        case "sub":
            return [fn, low, most], [fn, high, least]
        case "mul" | "floordiv" if number is not None and number > 0:
            return [fn, low, least], [fn, high, most]
        case "mul" if first is not None and first > 0:
            return [fn, low, least], [fn, high, most]
        case "mod" if number is not None and number > 0:
            return ["const", 0], ["const", int(number) - 1]
        case _:
            return None
