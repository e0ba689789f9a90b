"""Rule of exchanges: the tile is stored, and its chunks are read at their partners' places and shuffled."""

from __future__ import annotations

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import RelayoutOp
from tessera.ir.tile.exchange import ExchangeOp, is_whole
from tessera.ir.types import element_type
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.nodes import Coord, Coords, Iota, Node, Stored
from tessera.lower.vector.rules import lowers
from tessera.lower.vector.site import Site
from tessera.lower.vector.writer import chunk_layout
from tessera.numerics import dtypes

I32 = element_type(dtypes.i32)


@lowers(ExchangeOp)
def lower_exchange(context: VectorContext, op: ExchangeOp) -> None:
    """Store the tile, which is read a second time where partners may be missing."""
    stored = context.materialise(context.node(op.source))
    context.define(op.result, Exchanged(stored.shape, stored.element, stored, op.axis.data, op.bits.data))


@dataclass(eq=False)
class Exchanged(Node):
    """A tile whose element `i` along `axis` is the one at `i ^ bits`, or its own where there is none."""

    source: Stored
    axis: int
    bits: int

    def operands(self, coords: Coords) -> list[tuple[Node, Coords]]:
        """The stored tile, elsewhere; what is read at the same place may be needed, too."""
        return [(self.source, coords)]

    @property
    def aligned(self) -> bool:
        """No: that is what it is for."""
        return False

    @property
    def cost(self) -> int:
        """A load and a shuffle."""
        return 2

    def emit(self, site: Site, coords: Coords) -> SSAValue:
        """Read the chunk that holds the partners and shuffle its lanes."""
        coord, size = coords[self.axis], self.source.shape[self.axis]
        width = site.width if coord.lanes else 1
        scalars, within = site.writer.scalars, self.bits & (width - 1)
        base: SSAValue | int = coord.base
        if self.bits != within:
            base = scalars.binary("xor", site.index(base), self.bits - within)
            if not is_whole(size, self.bits):
                base = scalars.binary("minimum", base, (size - 1) // width * width)
        there = tuple(Coord(base, coord.lanes) if a == self.axis else c for a, c in enumerate(coords))
        other = self.source.emit(site, there)
        if within:
            order = [lane ^ within for lane in range(width)]
            other = site.writer.value(RelayoutOp(other, chunk_layout(width), order))
        if is_whole(size, self.bits):
            return other
        at = Iota((size,), I32).emit(site, (coord,))
        partner = site.apply("xor", [at, scalars.constant(self.bits, I32)])
        has = site.apply("lt", [partner, scalars.constant(size, I32)])
        return site.apply("select", [has, other, site.evaluate(self.source, coords)])
