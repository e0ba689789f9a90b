"""How much of each tile is needed: what leads only to elements past the end of a tensor need not be computed.

A tile that is stored to a tensor may reach past its end. Rows of the tile that lie there are not stored, nor is
anything needed that leads to them alone: rows of the operands of elementwise functions, of products and of reductions
along the other axis, also from one iteration of a loop to the next. What is not needed may hold anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xdsl.dialects import scf
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from tessera.data import dataclass
from tessera.ir.tile.elementwise import BitcastOp, CastOp, ElementwiseOp, RoundTf32Op, SplatOp
from tessera.ir.tile.memory import LoadOp, StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import ReduceOp, ScanOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, TransposeOp, unit_axes
from tessera.ir.tile.structure import KernelOp
from tessera.ir.tile.types import DYNAMIC, TileType, element_of, shape_of
from tessera.ir.types import dtype_of, i1
from tessera.ir.walking import ops_in
from tessera.lower.boxes import stays_in_tensor
from tessera.lower.facts import nonnegative
from tessera.numerics.assembly import is_assembly


@dataclass(frozen=True)
class Edge:
    """The end of a tensor that a tile is stored to, along one axis.

    Args:
        offset: where the box starts that is stored, an index of TIR-H.
        size: how long the box is.
        bound: the tensor's size, or what it is called.
        tensor: the tensor.
        dimension: its dimension.
    """

    offset: SSAValue
    size: int
    bound: int | str
    tensor: SSAValue
    dimension: int

    @property
    def key(self) -> tuple[SSAValue, int, int | str]:
        """What two edges have in common where they are one."""
        return self.offset, self.size, self.bound


Need = Edge | bool
"""How much of an axis is needed: nothing, all, or what lies before an edge."""


def joined(one: Need, other: Need) -> Need:
    """Return what is needed where two things need parts of an axis."""
    if one is False or other is False:
        return other if one is False else one
    same = isinstance(one, Edge) and isinstance(other, Edge) and one.key == other.key
    return one if same else True


class Needs:
    """Finds what is needed of each tile of a launch.

    Args:
        kernel: the kernel.
        block: the ops of the launch, without those of regions.
        divisor: a number that divides an index of TIR-H.
    """

    def __init__(self, kernel: KernelOp, block: Block, divisor: Callable[[SSAValue], int]):
        self._kernel, self._block, self._divisor = kernel, block, divisor
        self._known: dict[SSAValue, tuple[Need, ...]] = {}
        self._work: list[SSAValue] = []
        for outer in block.ops:
            for op in ops_in(outer):
                self._begin(op)
        while self._work:
            self._pass_on(self._work.pop())

    def of(self, value: SSAValue) -> tuple[Need, ...]:
        """Return how much is needed of each axis of a tile."""
        return self._known.get(value, (False,) * len(shape_of(value.type)))

    def cut(self, values: Iterable[SSAValue]) -> bool:
        """Return whether some of these tiles may be needed in part only."""
        return any(isinstance(need, Edge) for value in values for need in self.of(value))

    def _add(self, value: SSAValue, needs: Sequence[Need]) -> None:
        if not isinstance(value.type, TileType):
            return
        before = self.of(value)
        after = tuple(joined(*pair) for pair in zip(before, needs, strict=True))
        if after != before:
            self._known[value] = after
            self._work.append(value)

    def _all(self, values: Iterable[SSAValue]) -> None:
        for value in values:
            self._add(value, (True,) * len(shape_of(value.type)))

    def _begin(self, op: Operation) -> None:
        """Note what an op needs whatever is needed of its results."""
        if isinstance(op, StoreOp):
            needs = [self._stored(op, dimension) for dimension in op.kept]
            for value in (op.value, *([] if op.mask is None else [op.mask])):
                self._add(value, needs)
        elif isinstance(op, scf.YieldOp):
            if not isinstance(op.parent_op(), scf.ForOp | scf.IfOp):
                self._all(op.operands)
        elif isinstance(op, ReduceOp) and len(shape_of(op.source.type)) == 1:
            self._all([op.source])
        elif type(op) not in _RULES and not isinstance(op, scf.ForOp | scf.IfOp):
            self._all(op.operands)

    def _stored(self, op: StoreOp, dimension: int) -> Need:
        """Return how much of a tile its store needs along a dimension."""
        offset, size = op.offsets[dimension], op.tensor.type.shape[dimension]
        owner = offset.owner
        home = owner if isinstance(owner, Block) else owner.parent_block()
        outside = home in (self._block, self._kernel.body.block)
        if not outside or not nonnegative(offset) or stays_in_tensor(self._kernel, op, dimension, self._divisor):
            return True
        name = self._kernel.info_of(op.tensor).dims[dimension]
        named = name if name.isidentifier() else f"{name} {op.tensor.index} {dimension}"
        return Edge(offset, op.size_list[dimension], named if size == DYNAMIC else size, op.tensor, dimension)

    def _pass_on(self, value: SSAValue) -> None:
        """Note what a tile needs of those it is computed from."""
        needs = self.of(value)
        if isinstance(value, BlockArgument):
            loop = value.owner.parent_op()
            if isinstance(loop, scf.ForOp) and value.index > 0:
                self._carried(loop, value.index - 1, needs)
            return
        assert isinstance(value, OpResult)
        op = value.owner
        if isinstance(op, scf.ForOp):
            self._carried(op, value.index, needs)
        elif isinstance(op, scf.IfOp):
            for region in op.regions:
                if region.blocks:
                    self._add(_end_of(region.block).operands[value.index], needs)
        elif type(op) in _RULES:
            for operand, part in _RULES[type(op)](op, needs):
                self._add(operand, part)

    def _carried(self, loop: scf.ForOp, number: int, needs: Sequence[Need]) -> None:
        """Note what is needed of a tile that a loop carries, at its start and after each iteration."""
        self._add(loop.iter_args[number], needs)
        self._add(_end_of(loop.body.block).operands[number], needs)


def _end_of(block: Block) -> Operation:
    end = block.last_op
    assert end is not None
    return end


_Parts = list[tuple[SSAValue, Sequence[Need]]]


def _same_place(op: Operation, needs: Sequence[Need]) -> _Parts:
    return [(operand, needs) for operand in op.operands if len(shape_of(operand.type)) == len(needs)]


def _elementwise(op: ElementwiseOp, needs: Sequence[Need]) -> _Parts:
    """Integers are computed whole: a division of anything by zero traps."""
    element = element_of(op.result.type)
    whole = is_assembly(op.fn.data) or not (element == i1 or dtype_of(element).is_float)
    return _same_place(op, [True] * len(needs) if whole else needs)


def _broadcast(op: BroadcastOp, needs: Sequence[Need]) -> _Parts:
    sizes = shape_of(op.source.type)
    return [(op.source, [True if size == 1 else need for size, need in zip(sizes, needs, strict=True)])]


def _transpose(op: TransposeOp, needs: Sequence[Need]) -> _Parts:
    return [(op.source, [needs[op.permutation.index(axis)] for axis in range(len(needs))])]


def _reshape(op: ReshapeOp, needs: Sequence[Need]) -> _Parts:
    take = unit_axes(shape_of(op.source.type), shape_of(op.result.type))
    if take is None:
        return [(op.source, [True] * len(shape_of(op.source.type)))]
    return [(op.source, [True if axis is None else needs[axis] for axis in take])]


def _reduce(op: ReduceOp, needs: Sequence[Need]) -> _Parts:
    axis = op.axis.data
    return [(op.source, [*needs[:axis], True, *needs[axis:]])]


def _scan(op: ScanOp, needs: Sequence[Need]) -> _Parts:
    return [(op.source, [True if axis == op.axis.data else need for axis, need in enumerate(needs)])]


def _mma(op: MmaOp, needs: Sequence[Need]) -> _Parts:
    if len(needs) != 2:
        return [(operand, [True] * len(shape_of(operand.type))) for operand in op.operands]
    rows, columns = needs
    return [(op.acc, needs), (op.a, [rows, True]), (op.b, [True, columns])]


_RULES: dict[type[Operation], Callable[..., _Parts]] = {
    ElementwiseOp: _elementwise,
    CastOp: _same_place,
    BitcastOp: _same_place,
    RoundTf32Op: _same_place,
    SplatOp: _same_place,
    LoadOp: _same_place,
    BroadcastOp: _broadcast,
    TransposeOp: _transpose,
    ReshapeOp: _reshape,
    ReduceOp: _reduce,
    ScanOp: _scan,
    MmaOp: _mma,
}
"""What ops need of their operands, by what is needed of their result."""
