"""Chooses the layout of every tile: which thread holds which element.

Matrix products fix the layouts of their results; loads start in a coalesced layout; arithmetic follows its
operands, the strongest first; loops are solved by iteration until carried tiles keep their layout. Values that
are not placed are lazy: each use computes them in the layout it wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from tessera.data import dataclass
from tessera.errors import CompilerFault
from tessera.ir.layouts import LinearLayout, blocked, reduction
from tessera.ir.tile.types import TileType
from tessera.target.records import TargetRecord

if TYPE_CHECKING:
    from tessera.lower.simt.mma import MmaPlan

DEFAULT, LOADED, MATRIX = 0, 1, 2

SEGMENT, COMBINED_SEGMENT = 32, 16
"""Bytes of neighbours that the lanes of a row access together where a warp takes several rows to reduce them: of all
rows, and of those that are only loaded, of which lanes exchange several tiles (rows of 67 elements on an H200, of a
copy's rate by 128, 32 and 16 bytes: softmax of bf16 0.63, 0.71 and 0.47, argmax of f16 0.50, 0.66 and 0.75)."""

ACCESS_BYTES = 16
"""That a thread moves by one instruction at most."""
FEW_ROWS = 16
"""Rows that are reduced in registers where there is room: warps have other columns then, and nothing to exchange."""


def padded(size: int) -> int:
    """Return the next power of two."""
    return 1 << (size - 1).bit_length()


def padded_shape(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the shape a fragment needs to hold a tile of `shape`."""
    return tuple(padded(size) for size in shape)


@dataclass(frozen=True, slots=True)
class Placement:
    """A layout and how strongly it is wanted (`DEFAULT` < `LOADED` < `MATRIX`)."""

    layout: LinearLayout
    strength: int


@dataclass
class Placements:
    """The placement of every tile value of a launch.

    Args:
        target: the target record.
        num_warps: warps of a program.
        narrowest: bytes of the narrowest element that a tile of each shape is loaded or stored as.
        neighbours: most elements that one access to a tile of each shape moves.
        reduced: shapes of tiles that are reduced, each with the axis, and bytes that lanes access of a row together.
        products: how each product is computed, planned once (`lower.simt.mma`).
    """

    target: TargetRecord
    num_warps: int
    narrowest: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    neighbours: dict[tuple[int, ...], int] = field(default_factory=dict[tuple[int, ...], int])
    reduced: dict[tuple[tuple[int, ...], int], int] = field(default_factory=dict[tuple[tuple[int, ...], int], int])
    found: dict[SSAValue, Placement] = field(default_factory=dict[SSAValue, Placement])
    products: dict[Operation, MmaPlan] = field(default_factory=lambda: {})

    def default(
        self,
        shape: tuple[int, ...],
        fastest: int | None = None,
        element_bytes: int | None = None,
        *,
        nearest: Sequence[int] = (),
        across: bool = False,
        most: int | None = None,
    ) -> LinearLayout:
        """Return the coalesced layout of a shape: 16 bytes of neighbours a thread along axis `fastest` (the last).

        Where accesses move fewer at once, neighbouring threads have neighbouring accesses.

        Args:
            shape: the tile's.
            fastest: axis whose elements are neighbours in memory.
            nearest: all axes, those first whose elements lie nearest to one another; in place of `fastest`.
            element_bytes: bytes of an element, by default of the narrowest that such tiles are loaded or stored as.
            across: whether the lanes of a warp follow one another across `fastest` instead of along it.
            most: neighbours that a thread takes at most.
        """
        shape = padded_shape(shape)
        rank = len(shape)
        if rank == 0:
            lane_bits = self.target.warp_size.bit_length() - 1
            return LinearLayout.make(
                {
                    "register": (),
                    "lane": ((),) * lane_bits,
                    "warp": ((),) * (self.num_warps.bit_length() - 1),
                },
                (),
            )
        fast = nearest[0] if nearest else rank - 1 if fastest is None else fastest
        order = list(nearest) or [fast, *(axis for axis in reversed(range(rank)) if axis != fast)]
        threads = self.target.warp_size * self.num_warps
        unit = element_bytes or self.narrowest.get(shape, 4)
        vector = min(
            ACCESS_BYTES // unit, shape[fast], max(1, prod(shape) // threads), most or self.neighbours.get(shape, 16)
        )
        per_thread = [vector if axis == fast else 1 for axis in range(rank)]
        left = [size // box for size, box in zip(shape, per_thread, strict=True)]
        lanes = self._spread(self.target.warp_size, left, [*order[1:], fast] if across else order)
        if (segment := self.reduced.get((shape, fast))) is not None and not across:
            lanes = self._by_rows(lanes, left, order, max(1, segment // (vector * unit)))
        left = [max(1, size // box) for size, box in zip(left, lanes, strict=True)]
        across_warps = list(reversed(order))
        across_warps.sort(key=lambda axis: (shape, axis) in self.reduced and axis != fast and shape[axis] <= FEW_ROWS)
        warps = self._spread(self.num_warps, left, across_warps)
        return blocked(shape, per_thread, lanes, warps, order)

    def _by_rows(self, lanes: list[int], left: list[int], order: list[int], fewest: int) -> list[int]:
        """Return a box of lanes with fewer along the axis that is reduced where each warp has other rows for the rest.

        The fewer lanes share a row, the fewer steps combine their parts, and the fewer of them have nothing to do
        where the row ends between two powers of two.

        Args:
            lanes: the box that is as long as possible.
            left: boxes of elements along each axis.
            order: axes, that which is reduced first.
            fewest: lanes along it.
        """
        fast, *others = order
        rows = prod(left[axis] for axis in others) // self.num_warps
        along = max(fewest, self.target.warp_size // max(1, rows))
        if along >= lanes[fast]:
            return lanes
        fewer = [along if axis == fast else size for axis, size in enumerate(left)]
        return self._spread(self.target.warp_size, fewer, order)

    @staticmethod
    def _spread(count: int, left: list[int], order: list[int]) -> list[int]:
        """Spread `count` units over the axes of `order`; what is too many wraps around on the last one."""
        boxes = [1] * len(left)
        for axis in order:
            boxes[axis] = min(count, left[axis])
            count //= boxes[axis]
        boxes[order[-1]] *= count
        return boxes

    def of(self, value: SSAValue) -> Placement | None:
        """Return where a tile is, or None when it is lazy."""
        return self.found.get(value)

    def place(self, value: SSAValue, layout: LinearLayout, strength: int) -> None:
        """Fix where a tile is."""
        self.found[value] = Placement(layout, strength)

    def strongest(self, values: Iterable[SSAValue]) -> Placement | None:
        """Return the strongest placement among values, the first of equals."""
        placements = [p for v in values if (p := self.found.get(v)) is not None]
        return max(placements, key=lambda p: p.strength, default=None)

    def layout_or_default(self, value: SSAValue) -> LinearLayout:
        """Return a tile's layout, the default one when it is lazy."""
        assert isinstance(value.type, TileType)
        placement = self.found.get(value)
        return placement.layout if placement else self.default(value.type.shape)


Inference = Callable[[Placements, Any], None]
INFERENCES: dict[type[Operation], Inference] = {}


def infers(*ops: type[Operation]) -> Callable[[Inference], Inference]:
    """Register how the results of op classes are placed; without a rule they are lazy (or no tiles)."""

    def register(rule: Inference) -> Inference:
        for op in ops:
            INFERENCES[op] = rule
        return rule

    return register


def follow(placements: Placements, op: Operation) -> None:
    """Place every tile result with the strongest operand; lazy operands make a lazy result."""
    strongest = placements.strongest(op.operands)
    if strongest is None:
        return
    for result in op.results:
        if isinstance(result.type, TileType):
            placements.place(result, strongest.layout, strongest.strength)


def place_block(placements: Placements, ops: Iterable[Operation]) -> None:
    """Place the results of ops in order."""
    for op in ops:
        rule = INFERENCES.get(type(op))
        if rule is not None:
            rule(placements, op)


def reduced_placement(placements: Placements, source: SSAValue, axis: int) -> Placement:
    """Return where the result of reducing `source` along `axis` is."""
    layout = placements.layout_or_default(source)
    placement = placements.of(source)
    strength = placement.strength if placement else DEFAULT
    return Placement(reduction(layout.unique_registers(), axis).result, strength)


def _is_tile(value: SSAValue) -> bool:
    return isinstance(value.type, TileType)


def _settle(
    placements: Placements, carried: list[tuple[SSAValue, SSAValue]], body: Callable[[], list[SSAValue]]
) -> None:
    """Iterate a loop body until carried tiles keep their layouts.

    Args:
        placements: what is known.
        carried: the tile values that enter (initial value, block argument).
        body: places the body and returns the values carried to the next iteration.
    """
    for initial, argument in carried:
        start = placements.of(initial)
        if start is not None:
            placements.found[argument] = start
    for _attempt in range(8):
        nexts = body()
        changed = False
        for (_initial, argument), value in zip(carried, nexts, strict=True):
            best = placements.strongest([argument, value])
            if best is None:
                assert isinstance(argument.type, TileType)
                best = Placement(placements.default(argument.type.shape), DEFAULT)
            if placements.of(argument) != best:
                placements.found[argument] = best
                changed = True
        if not changed:
            return
    raise CompilerFault("layouts of a loop's tiles do not settle", help="please report the kernel")


@infers(scf.ForOp)
def _for(placements: Placements, op: scf.ForOp) -> None:
    block = op.body.block
    positions = [i for i, value in enumerate(op.iter_args) if _is_tile(value)]
    carried: list[tuple[SSAValue, SSAValue]] = [(op.iter_args[i], block.args[i + 1]) for i in positions]

    def body() -> list[SSAValue]:
        place_block(placements, block.ops)
        last = block.last_op
        assert last is not None
        return [last.operands[i] for i in positions]

    _settle(placements, carried, body)
    for i, (_, argument) in zip(positions, carried, strict=True):
        placements.found[op.results[i]] = placements.found[argument]


@infers(scf.WhileOp)
def _while(placements: Placements, op: scf.WhileOp) -> None:
    before, after = op.before_region.block, op.after_region.block
    positions = [i for i, value in enumerate(op.arguments) if _is_tile(value)]
    carried: list[tuple[SSAValue, SSAValue]] = [(op.arguments[i], before.args[i]) for i in positions]

    def body() -> list[SSAValue]:
        place_block(placements, before.ops)
        condition = before.last_op
        assert isinstance(condition, scf.ConditionOp)
        for value, argument, result in zip(condition.args, after.args, op.results, strict=True):
            if _is_tile(value):
                assert isinstance(value.type, TileType)
                placement = placements.of(value) or Placement(placements.default(value.type.shape), DEFAULT)
                placements.found[argument] = placements.found[result] = placement
        place_block(placements, after.ops)
        last = after.last_op
        assert last is not None
        return [last.operands[i] for i in positions]

    _settle(placements, carried, body)


@infers(scf.IfOp)
def _if(placements: Placements, op: scf.IfOp) -> None:
    blocks: list[Block] = [region.block for region in op.regions if region.blocks]
    for block in blocks:
        place_block(placements, block.ops)
    for i, result in enumerate(op.results):
        if isinstance(result.type, TileType):
            yielded = [block.last_op.operands[i] for block in blocks if block.last_op is not None]
            best = placements.strongest(yielded)
            placements.found[result] = best or Placement(placements.default(result.type.shape), DEFAULT)
