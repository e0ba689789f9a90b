"""Products that are computed a strip of rows at a time, each just before it is stored.

The schedule says which are, and how many rows a strip has. The loop that stores such a product computes each strip
before it; whatever else needs the product first has all of it computed.
"""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from tessera.data import dataclass
from tessera.ir import decisions
from tessera.ir.target.arithmetic import ElementwiseOp
from tessera.ir.target.memory import ViewOp
from tessera.ir.target.product import ProductOp
from tessera.ir.target.types import BufferType
from tessera.ir.tile.memory import StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.liveness import Liveness
from tessera.lower.vector.nodes import Pending, Resource, Stored
from tessera.lower.vector.packing import Packed


@dataclass(frozen=True)
class Operand:
    """An operand: its rows or panels, or where it lies in a tensor.

    Args:
        value: the buffer, or the address of the tensor.
        outer: how many rows, or columns, count; None for all.
        depth: how many terms of each sum count; None for all.
        root: the buffer's allocation, None for a tensor.
        arg: the tensor's memory, as a position among the kernel's arguments.
        place: where it is in the tensor.
    """

    value: SSAValue
    outer: SSAValue | None
    depth: SSAValue | None
    root: SSAValue | None = None
    arg: int = 0
    place: tuple[SSAValue, ...] = ()

    @classmethod
    def packed(cls, packed: Packed) -> Operand:
        """Return what has been packed as an operand."""
        return cls(packed.buffer.buffer, packed.outer, packed.depth, packed.buffer.root)

    @property
    def memory(self) -> Resource:
        """What it lies in."""
        return ("tensor", self.arg) if self.root is None else ("buffer", self.root)


@dataclass(frozen=True)
class Placed:
    """Sums in the tensor that they are stored to.

    Args:
        pointer: the tensor.
        start: where they begin, and the distance of their rows.
        inside: whether they are there; else they are in scratch memory.
    """

    pointer: SSAValue
    start: tuple[SSAValue, SSAValue]
    inside: SSAValue


@dataclass(frozen=True)
class Product:
    """A product with all it needs.

    Args:
        left: the left operand.
        right: the right one.
        sums: where it is added, or written.
        size: columns and terms that count.
        instruction: what multiplies.
        ahead: what to prefetch meanwhile, when all is computed at once.
        fresh: whether the sums begin with this product.
        room: a buffer for a copy of rows in place.
        placed: where the sums are instead while a condition holds.
        needed: rows and columns of the sums that anybody reads, where a matrix unit multiplies.
    """

    left: Operand
    right: Operand
    sums: Stored
    size: tuple[SSAValue, SSAValue]
    instruction: str
    ahead: tuple[SSAValue | None, tuple[SSAValue, ...]] = (None, ())
    fresh: SSAValue | None = None
    room: Stored | None = None
    placed: Placed | None = None
    needed: tuple[SSAValue, ...] = ()

    def pending(self, context: VectorContext, strip: int) -> Pending:
        """Return the tile of sums, to be computed when it is stored, `strip` rows at a time."""
        used = self.left.memory, self.right.memory, ("buffer", self.sums.root)
        return Pending(
            self.sums.shape,
            self.sums.element,
            self.sums,
            strip,
            used,
            lambda: self.write(context),
            lambda start: self.write_strip(context, start, strip),
        )

    def write(self, context: VectorContext) -> None:
        """Write the product of all rows."""
        scalars = context.writer.scalars
        rows = scalars.constant(self.sums.shape[0]) if self.left.outer is None else self.left.outer
        self._insert(context, self.left.value, self.sums.buffer, rows, self.left.place, self.ahead[1], self.needed)

    def write_strip(self, context: VectorContext, start: SSAValue, strip: int) -> SSAValue:
        """Write the product of the `strip` rows that begin at one, and return the row that is first in the sums.

        All strips of sums that begin with the product are written to one place.
        """
        scalars = context.writer.scalars
        number, first = scalars.binary("floordiv", start, strip), scalars.constant(0)
        place, a, sums = self.left.place, self.left.value, number
        if self.fresh is not None:
            sums = context.writer.value(ElementwiseOp("select", [self.fresh, first, number]))
            first = context.writer.value(ElementwiseOp("select", [self.fresh, start, first]))
        if place:
            place = (scalars.add(place[0], scalars.binary("mul", start, place[1])), place[1])
        else:
            a = _strip_of(context, a, number, strip)
        rows: SSAValue = scalars.constant(strip)
        if self.left.outer is not None:
            left = scalars.binary("sub", self.left.outer, start)
            rows = scalars.binary("maximum", scalars.binary("minimum", left, rows), 0)
        ahead = self.ahead[1]
        if ahead:  # nothing is packed next
            ahead = (*ahead[:2], scalars.constant(0), ahead[3])
        strips, needed = self.sums.shape[0] // strip, self.needed
        if needed:
            left = scalars.binary("sub", needed[0], start)
            needed = (scalars.binary("maximum", scalars.binary("minimum", left, strip), 0), needed[1])
        self._insert(context, a, _strip_of(context, self.sums.buffer, sums, strip), rows, place, ahead, needed, strips)
        return first

    def _insert(
        self,
        context: VectorContext,
        a: SSAValue,
        sums: SSAValue,
        rows: SSAValue,
        place: tuple[SSAValue, ...],
        ahead: tuple[SSAValue, ...],
        needed: tuple[SSAValue, ...],
        strips: int = 1,
    ) -> None:
        for root in (self.left.root, self.right.root, self.sums.root, self.room and self.room.root):
            if root is not None:
                context.scratch.touch(root, context.position_end(root))
        room = None if self.room is None else self.room.buffer
        context.writer.insert(
            ProductOp(
                a,
                self.right.value,
                sums,
                (rows, *self.size),
                self.instruction,
                self.right.place,
                place,
                self.ahead[0],
                ahead,
                self.fresh,
                room,
                strips,
                None if self.placed is None else (self.placed.pointer, self.placed.start, self.placed.inside),
                needed,
            )
        )


def _strip_of(context: VectorContext, buffer: SSAValue, number: SSAValue, size: int) -> SSAValue:
    """Return one strip of a buffer of rows, `size` of them."""
    type_ = buffer.type
    assert isinstance(type_, BufferType)
    rows, columns = type_.shape
    strip = BufferType.of((size, columns), type_.element, type_.space.data, pitch=type_.pitch.data)
    strips = context.writer.value(ViewOp(buffer, strip.times(rows // size)))
    return context.writer.value(ViewOp(strips, strip, number))


def store_after(liveness: Liveness, op: MmaOp) -> StoreOp | None:
    """Return the store that is a product's only use and comes next, None where there is none.

    Either it follows, or it is all that the last iteration of the loop around the product does after it.
    """
    ends, block, loop = liveness.sinks(op.result), op.parent_block(), op.parent_op()
    assert block is not None
    stores = [end for end in ends if isinstance(end, StoreOp)]
    if len(stores) != 1:
        return None
    use, parent = stores[0], stores[0].parent_op()
    if isinstance(parent, scf.IfOp) and isinstance(loop, scf.ForOp):
        otherwise = parent.false_region.blocks
        stored_else = bool(otherwise) and otherwise[0].first_op is not otherwise[0].last_op
        if stored_else or not decisions.LAST_ITERATION.on(parent):
            return None
        if any(result.uses.get_length() for result in loop.results):
            return None
        use, ends = parent, ends - {block.last_op}
    found = len(ends) == 1 and use.parent_block() is block and _follows(op, use)
    return stores[0] if found else None


def _follows(op: Operation, use: Operation) -> bool:
    """Return whether there are no loops, branches or effects between an op and another one after it."""
    following = op.next_op
    while following is not None and following is not use:
        if following.regions or isinstance(following, StoreOp):
            return False
        following = following.next_op
    return following is use
