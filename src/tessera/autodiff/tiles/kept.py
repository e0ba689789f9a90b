"""What grids of an adjoint need of the programs of another one: computed again where it is little, and kept else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects.scf import ForOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from tessera.autodiff.tiles.arguments import Arguments, Size
from tessera.autodiff.tiles.emitter import Emitter, unwidened
from tessera.data import dataclass
from tessera.ir.tile.elementwise import ArangeOp, CastOp, ConstantOp, ElementwiseOp, SplatOp, constant_value
from tessera.ir.tile.extents import host_extent
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp
from tessera.ir.tile.types import TensorType, TileType, element_of, shape_of
from tessera.ir.types import dtype_of

LITTLE = (ArangeOp, BroadcastOp, CastOp, ConstantOp, DimOp, ElementwiseOp, LoadOp, ReshapeOp, SplatOp, TransposeOp)
"""Ops that are done again rather than that their results are kept."""
MOST = 2
"""Loads, and functions of tiles, that are done again for one value."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a value is kept.

    Args:
        memory: one place for each program.
        each: whether it has one for each iteration.
        along: by dimensions of the value, axes of the grid along which those of all programs lie side by side.
    """

    memory: SSAValue
    each: bool
    along: Mapping[int, int]


class Keeper:
    """Keeps values of the programs of one grid.

    Args:
        emit: writes ops.
        arguments: adds parameters to the adjoint.
        grid: a grid with the extents and blocks of the programs.
        places: where a program is in it, in the adjoint.
    """

    def __init__(self, emit: Emitter, arguments: Arguments, grid: GridOp, places: Sequence[SSAValue]) -> None:
        self.places = list(places)
        self._emit, self._arguments, self._grid = emit, arguments, grid
        self._memory: dict[SSAValue, Kept] = {}

    def of_program(self, value: SSAValue, before: Operation) -> Kept:
        """Keep a value of a program, once, and return where: it is stored before an op."""
        if value not in self._memory:
            self._memory[value] = self._keep(value, before, [], None)
        return self._memory[value]

    def of_iteration(self, value: SSAValue, around: ForOp, steps: Size) -> Kept:
        """Keep a value that a loop from the last iteration on carries at each of them, and return where."""
        first = around.body.block.first_op
        assert first is not None, "the adjoint of a loop does something"
        return self._keep(value, first, [steps], around)

    def load(self, value: SSAValue, kept: Kept, places: Sequence[SSAValue], number: SSAValue | None = None) -> SSAValue:
        """Emit and return the load of a value that is kept.

        Args:
            value: the value.
            kept: where it is.
            places: where the program is in the grid.
            number: that of the iteration.
        """
        at, box, ahead = self._box(value, kept.along, places, [] if number is None or not kept.each else [number])
        return self._emit.value(LoadOp(kept.memory, at, box, range(ahead)))

    def _keep(self, value: SSAValue, before: Operation, steps: Sequence[Size], around: ForOp | None) -> Kept:
        emit, shape, arguments = self._emit, shape_of(value.type), self._arguments
        along = {} if steps else self._proven(value)
        is_whole = bool(along)  # what lies outside of the grid need not be kept
        if not along and not steps:
            along = self._rows(shape)
        sizes: list[Size] = [self._programs(axis) for axis in self._axes_but(along)]
        sizes += steps
        names: dict[int, str] = {}
        last = max(along, default=-1)
        for dim in range(last + 1):
            axis = along.get(dim)
            if axis is not None and is_whole and (name := self._name(axis)) is not None:
                names[len(sizes)] = name
            sizes.append(["const", shape[dim]] if axis is None else self._elements(axis, is_whole))
        name = f"kept{len(arguments.added)}"
        memory = arguments.scratch(name, element_of(value.type), sizes, then=shape[last + 1 :], names=names)
        kept = Kept(memory, bool(steps), along)
        made = Block()
        with emit.into(made):
            numbers: list[SSAValue] = []
            if around is not None:
                left = emit.binary("sub", around.ub, around.body.block.args[0])
                numbers.append(emit.binary("sub", left, emit.index(1)))
            at, box, ahead = self._box(value, along, self.places, numbers)
            emit.add(StoreOp(value, memory, at, box, range(ahead)))
        block = before.parent_block()
        assert block is not None, "it is in a program"
        for op in list(made.ops):
            op.detach()
            block.insert_op_before(op, before)
        return kept

    def _programs(self, axis: int) -> Size:
        """Return how many programs there are along an axis."""
        return ["ceildiv", host_extent(self._grid.extents[axis]), ["const", self._grid.block_sizes[axis]]]

    def _elements(self, axis: int, is_whole: bool) -> Size:
        """Return how many elements the blocks along an axis have, of the grid or in all."""
        if is_whole:
            return host_extent(self._grid.extents[axis])
        return ["mul", self._programs(axis), ["const", self._grid.block_sizes[axis]]]

    def _name(self, axis: int) -> str | None:
        """Return the name of an axis's extent, None where it is not a size of a parameter."""
        owner = self._grid.extents[axis].owner
        return self._arguments.size_of(owner.tensor, owner.axis.data) if isinstance(owner, DimOp) else None

    def _rows(self, shape: Sequence[int]) -> dict[int, int]:
        """Return the axis whose blocks are as long as a tile has rows, which lie side by side then."""
        axes = [axis for axis, size in enumerate(self._grid.block_sizes) if shape and size == shape[0] > 1]
        return {0: axes[0]} if len(axes) == 1 else {}

    def _proven(self, value: SSAValue) -> dict[int, int]:
        """Return the axes whose blocks the dimensions of a tile are: it is of numbers that are loaded there."""
        while isinstance(value.owner, CastOp):
            value = value.owner.source
        op = value.owner
        if not isinstance(op, LoadOp) or op.fill is not None or op.mask is not None:
            return {}
        dims = [(dim, at) for dim, at in enumerate(op.kept) if op.offsets[at] in self.places]
        found = {dim: self.places.index(op.offsets[at]) for dim, at in dims}
        ends = all(self._ends_with(op, at, found[dim]) for dim, at in dims)
        return found if ends and len({*found.values()}) == len(found) else {}

    def _ends_with(self, op: LoadOp, at: int, axis: int) -> bool:
        """Return whether blocks along an axis of the grid are the slices along a dimension, to the tensor's end."""
        assert isinstance(op.tensor.type, TensorType), "a tensor is read"
        if op.size_list[at] != self._grid.block_sizes[axis]:
            return False
        size, known = op.tensor.type.shape[at], constant_value(self._grid.extents[axis])
        return known == size or (known is None and self._name(axis) == self._arguments.size_of(op.tensor, at))

    def _axes_but(self, along: Mapping[int, int]) -> list[int]:
        return [axis for axis in range(len(self._grid.block_sizes)) if axis not in along.values()]

    def _box(
        self, value: SSAValue, along: Mapping[int, int], places: Sequence[SSAValue], numbers: Sequence[SSAValue]
    ) -> tuple[list[SSAValue], list[int], int]:
        """Return the offsets and the sizes of a value's box, and how many of its dimensions the value lacks."""
        emit, shape = self._emit, shape_of(value.type)
        ahead = [self._number(places, axis) for axis in self._axes_but(along)] + [*numbers]
        rest = [places[along[dim]] if dim in along else emit.index(0) for dim in range(len(shape))]
        return [*ahead, *rest], [*[1] * len(ahead), *shape], len(ahead)

    def _number(self, places: Sequence[SSAValue], axis: int) -> SSAValue:
        """Return the number of a program along an axis."""
        block = self._grid.block_sizes[axis]
        return places[axis] if block == 1 else self._emit.binary("floordiv", places[axis], self._emit.index(block))

    def is_little(self, value: SSAValue, known: set[SSAValue]) -> bool:
        """Return whether a value of a program is computed again, from what the adjoint only reads, rather than kept.

        What is rounded to the operand of a product is kept: so the product reads it as it lies in memory.
        """
        seen, work, much = set[SSAValue](), [value], 0
        while work:
            one = work.pop()
            if one in seen or one in known or is_everywhere(one):
                continue
            seen.add(one)
            owner = one.owner
            if not isinstance(owner, LITTLE) or _is_rounded(owner):
                return False
            if isinstance(owner, LoadOp) and not self._arguments.is_read_only(owner.tensor):
                return False
            much += isinstance(owner, LoadOp) or (isinstance(owner, ElementwiseOp) and bool(shape_of(one.type)))
            work += owner.operands
        return much <= MOST


def _is_rounded(op: Operation) -> bool:
    """Return whether an op rounds a matrix of floats to fewer bits."""
    if not isinstance(op, CastOp) or len(shape_of(op.result.type)) < 2:
        return False
    source, result = (dtype_of(element_of(value.type)) for value in (op.source, op.result))
    return source.is_float and result.is_float and result.bits < source.bits


def hoist(loop: ForOp) -> None:
    """Move functions that give the same in all iterations, and no more bytes than they take, out of a loop."""
    block = loop.parent_block()
    assert block is not None, "it is in a program"
    inside = {*loop.body.block.args, *(result for op in loop.body.block.ops for result in op.results)}
    for op in list(loop.body.block.ops):
        if not isinstance(op, CastOp | ElementwiseOp) or any(operand in inside for operand in op.operands):
            continue
        tiles = [_bytes_of(operand) for operand in op.operands if isinstance(operand.type, TileType)]
        if tiles and _bytes_of(op.results[0]) <= max(tiles):
            op.detach()
            block.insert_op_before(op, loop)
            inside -= {*op.results}
            if isinstance(op, CastOp) and (before := unwidened(op.source, element_of(op.result.type))) is not None:
                op.result.replace_all_uses_with(before)


def _bytes_of(value: SSAValue) -> int:
    return prod(shape_of(value.type)) * dtype_of(element_of(value.type)).bits


def is_everywhere(value: SSAValue) -> bool:
    """Return whether a value is one of the kernel, outside of its grids."""
    owner = value.owner
    block = owner if isinstance(owner, Block) else owner.parent_block()
    return block is not None and isinstance(block.parent_op(), KernelOp)


def again(emit: Emitter, value: SSAValue, known: dict[SSAValue, SSAValue]) -> SSAValue:
    """Emit the ops that a value depends on again, from values that are known, and return it."""
    if value in known:
        return known[value]
    owner = value.owner
    if isinstance(owner, Block) or isinstance(value, BlockArgument) or is_everywhere(value):
        assert is_everywhere(value), "all that an iteration depends on is known"
        return value
    for operand in owner.operands:
        again(emit, operand, known)
    copy = owner.clone({operand: known.get(operand, operand) for operand in owner.operands})
    emit.add(copy)
    known.update(zip(owner.results, copy.results, strict=True))
    return known[value]


def needed_of(value: SSAValue, block: Block, known: Mapping[SSAValue, object] | set[SSAValue]) -> list[SSAValue]:
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
        elif not is_everywhere(one):
            found.append(one)
    return found
