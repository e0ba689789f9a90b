"""Which dimensions of a grid can have blocks of another size, and the launch with such blocks.

A program of a product computes a tile of the results, `c[m : m + 104, n : n + 200]`. Where each element of what it
stores depends on its own row and its own column alone, tiles of another size compute the same. That is so where the
number of a program says nothing but where its boxes start, boxes that start there have the size of its block, and what
is computed of them is elementwise along that dimension: products along their rows and columns, reductions along others.
Places of rows or columns, `m + ts.tile.arange(104)`, are those of an element too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from xdsl.dialects import scf
from xdsl.ir import Attribute, Operation, SSAValue

from tessera.ir.batching import names_size_of
from tessera.ir.notes import Unfit
from tessera.ir.splitting import Axis, Dimensions, Splitter
from tessera.ir.tile.elementwise import ArangeOp, BitcastOp, CastOp, ConstantOp, ElementwiseOp, RoundTf32Op, SplatOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp
from tessera.ir.tile.structure import DimOp, GridOp, KernelOp, memory_of
from tessera.ir.tile.types import element_of, shape_of
from tessera.ir.tile.writes import stored_memories
from tessera.ir.types import dtype_of, index
from tessera.ir.walking import ops_in

_PLAIN = (
    ConstantOp,
    DimOp,
    ElementwiseOp,
    CastOp,
    BitcastOp,
    RoundTf32Op,
    SplatOp,
    BroadcastOp,
    ReshapeOp,
    TransposeOp,
)
_KNOWN = (*_PLAIN, ArangeOp, LoadOp, StoreOp, MmaOp, ReduceOp, scf.ForOp, scf.IfOp, scf.YieldOp)


class Regrid:
    """A launch whose blocks may have other sizes.

    Args:
        kernel: the kernel.
        grid: the launch.

    `fixed` says why dimensions of the grid keep their blocks.

    Raises:
        Unfit: all of them do.
    """

    def __init__(self, kernel: KernelOp, grid: GridOp) -> None:
        self.kernel, self.grid = kernel, grid
        self.dimensions = Dimensions(grid)
        self.fixed: dict[int, str] = {}
        self._owners: dict[Axis, set[int | None]] = {}
        self._places = {op: n for op in ops_in(grid) if (n := self._place_of(op)) is not None}
        self._check_ops()
        self._check_numbers()
        for op in grid.walk():
            if isinstance(op, LoadOp | StoreOp):
                self._box(op)
            elif isinstance(op, MmaOp):
                self._owns(op.a, 1, None)
            elif isinstance(op, ReduceOp):
                self._owns(op.source, op.axis.data, None)
            elif isinstance(op, ArangeOp):
                self._owns(op.result, 0, self._counts_for(op))
            elif isinstance(op, ReshapeOp | BroadcastOp):
                self._single(op.source)
                self._single(op.result)
        self._check_owners()

    def owner(self, value: SSAValue, axis: int) -> int | None:
        """Return the dimension of the grid whose blocks an axis of a tile is, None where there is none that is free."""
        owners = self._owners.get(self.dimensions.of(value, axis), {None})
        (number,) = owners if len(owners) == 1 else {None}
        return None if number in self.fixed else number

    def with_blocks(self, blocks: Mapping[int, int], guard: SSAValue | None = None) -> GridOp:
        """Return the launch with other blocks; it is not inserted.

        Args:
            blocks: the sizes of those that change, by dimension of the grid, of which none is fixed.
            guard: when the launch has programs, see `GridOp`.
        """
        cuts = {axis: (blocks[n],) for axis, (n, *_) in self._owners.items() if n is not None and n in blocks}
        parts = Splitter(self.dimensions, cuts).grid_of_parts(self.grid)
        sizes = [blocks.get(number, size) for number, size in enumerate(self.grid.block_sizes)]
        new = GridOp(list(self.grid.extents), sizes, guard)
        new.location = self.grid.location
        new.attributes.update(self.grid.attributes)
        new.body.detach_block(0)
        new.body.add_block(parts.body.detach_block(0))
        return new

    # What forbids it

    def _check_ops(self) -> None:
        for op in self.grid.walk():
            if op is not self.grid and not isinstance(op, _KNOWN):
                raise Unfit(f"{op.name.removeprefix('tessera_tile.')} may ask for the blocks as they are")
        stores = [op for op in ops_in(self.grid) if isinstance(op, StoreOp)]
        stored = stored_memories(self.grid)
        for op in self.grid.walk():
            if isinstance(op, LoadOp) and memory_of(op.tensor) in stored:
                others = [store for store in stores if memory_of(store.tensor) is memory_of(op.tensor)]
                if not all(_same_box(op, store) for store in others):
                    raise Unfit("programs load what others may store")

    def _check_numbers(self) -> None:
        """Fix the dimensions whose numbers say more than where boxes start, and where their elements are."""
        for number, place in enumerate(self.grid.body.block.args):
            if not all(_is_start(user, value) or user in self._places for value, user in _users(place)):
                self._fix(number, "the number of a program says more than where its boxes start")

    def _place_of(self, op: Operation) -> int | None:
        """Return the dimension of the grid whose offset an op adds to what it counts, None where it does not."""
        if not isinstance(op, ElementwiseOp) or op.fn.data != "add":
            return None
        sources = [_source(arg) for arg in op.args]
        offsets = [arg for arg in sources if arg in self.grid.body.block.args]
        counts = [arg for arg in sources if isinstance(arg.owner, ArangeOp)]
        return list[SSAValue](self.grid.body.block.args).index(offsets[0]) if offsets and counts else None

    def _counts_for(self, op: ArangeOp) -> int | None:
        """Return the dimension of the grid whose blocks an op counts the elements of, None for something else."""
        found = {self._places.get(user) for _, user in _users(op.result)}
        (number,) = found if len(found) == 1 else {None}
        return number

    def _fix(self, number: int | None, reason: str) -> None:
        """Say why a dimension of the grid keeps its blocks."""
        if number is not None:
            self.fixed.setdefault(number, reason)

    def _owns(self, value: SSAValue, axis: int, number: int | None) -> None:
        self._owners.setdefault(self.dimensions.of(value, axis), set()).add(number)

    def _single(self, value: SSAValue) -> None:
        """Say that axes of one element may stand for no dimension: in a block of one, nothing shows that they do."""
        for axis, size in enumerate(shape_of(value.type)):
            if size == 1:
                self._owns(value, axis, None)

    def _box(self, op: LoadOp | StoreOp) -> None:
        places = list(self.grid.body.block.args)
        tile = op.result if isinstance(op, LoadOp) else op.value
        started = [places.index(offset) if offset in places else None for offset in op.offsets]
        for axis, at in enumerate(op.kept):
            number = started[at]
            if number is not None and op.size_list[at] != self.grid.block_sizes[number]:
                self._fix(number, "a box that starts at the number of a program has another size than its block")
            self._owns(tile, axis, number)
        for number in range(len(places)):
            found = [axis for axis, start in enumerate(started) if start == number]
            if len(found) > 1 or any(axis in op.dropped for axis in found):
                self._fix(number, "a box lies at the number of a program in other ways than by its block")
            elif isinstance(op, StoreOp) and not (
                found and names_size_of(self.kernel, self.grid.extents[number], op.tensor, found[0])
            ):
                self._fix(number, "a tensor that is stored to does not end where the grid does")

    def _check_owners(self) -> None:
        """Fix the dimensions whose blocks other tiles share, or an op that takes them as a whole."""
        for axis, owners in self._owners.items():
            reason = self.dimensions.why_whole(axis)
            if reason is None and len(owners) > 1:
                reason = "a dimension of tiles is not its block alone"
            if reason is not None:
                for number in owners:
                    self._fix(number, reason)


def _source(value: SSAValue) -> SSAValue:
    """Return the integer that a tile, or an integer of another type, was made of."""
    while isinstance(value.owner, SplatOp) or (isinstance(value.owner, CastOp) and _keeps_integers(value.owner)):
        value = value.owner.operands[0]
    return value


def _users(value: SSAValue) -> Iterator[tuple[SSAValue, Operation]]:
    """Yield the ops that use an integer, and as what, through those that make it a tile or of another type."""
    for use in value.uses:
        op = use.operation
        if isinstance(op, SplatOp) or (isinstance(op, CastOp) and _keeps_integers(op)):
            yield from _users(op.results[0])
        else:
            yield value, op


def _keeps_integers(op: CastOp) -> bool:
    """Return whether a cast changes no integer."""
    bits = [64 if e == index else dtype_of(e).bits * dtype_of(e).is_int for e in map(element_of, _types(op))]
    return 0 < bits[0] <= bits[1]


def _types(op: CastOp) -> tuple[Attribute, Attribute]:
    return op.source.type, op.result.type


def _is_start(op: Operation, place: SSAValue) -> bool:
    """Return whether an op uses a number only as the start of a box."""
    if not isinstance(op, LoadOp | StoreOp):
        return False
    return sum(operand is place for operand in op.operands) == sum(offset is place for offset in op.offsets)


def _same_box(load: LoadOp, store: StoreOp) -> bool:
    def places(values: Iterable[SSAValue]) -> list[SSAValue]:
        return list(values)

    same = load.tensor is store.tensor and load.size_list == store.size_list
    return same and places(load.offsets) == places(store.offsets)
