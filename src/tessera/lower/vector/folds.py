"""What reductions and scans combine by: a function of the language, or a combiner of the user's own."""

from __future__ import annotations

from xdsl.ir import Attribute, Block, SSAValue

from tessera.data import dataclass
from tessera.ir.target.arithmetic import HalvesOp, ReduceRegistersOp
from tessera.ir.target.types import element_of, fragment_of
from tessera.lower.combiners import Values, combine
from tessera.lower.vector.context import VectorContext
from tessera.lower.vector.site import Site
from tessera.lower.vector.writer import chunk_type


@dataclass(frozen=True)
class Function:
    """Combines by a function of the language, which has a neutral element to start from."""

    fn: str
    start: SSAValue | None

    def __call__(self, site: Site, left: Values, right: Values) -> Values:
        """Combine chunks with chunks."""
        return [site.apply(self.fn, [*left, *right])]

    def lanes(self, site: Site, totals: Values) -> Values:
        """Combine the lanes of a chunk to a scalar."""
        (total,) = totals
        type_ = fragment_of(total.type)
        return totals if type_ is None else [site.writer.value(ReduceRegistersOp(total, 0, self.fn, type_.element))]


@dataclass(frozen=True)
class Combiner:
    """Combines by a combiner of the user's own."""

    context: VectorContext
    block: Block
    start: SSAValue | None = None

    def __call__(self, site: Site, left: Values, right: Values) -> Values:
        """Combine chunks with chunks."""
        writer = site.writer

        def splat(value: SSAValue, like: Attribute) -> SSAValue:
            chunk = fragment_of(like)
            assert chunk is not None
            return writer.splat(value, chunk.shape[0])

        return combine(
            self.block,
            [*left, *right],
            self.context.scalar,
            writer.value,
            lambda op: writer.scalars.constant(op.python_value, op.result.type),
            splat,
        )

    def lanes(self, site: Site, totals: Values) -> Values:
        """Combine the lanes of chunks to scalars, the first half with the second until one is left."""
        while (type_ := fragment_of(totals[0].type)) is not None:
            half = type_.shape[0] // 2
            halves = [HalvesOp(total, chunk_type(element_of(total.type), half)) for total in totals]
            for op in halves:
                site.writer.insert(op)
            totals = self(site, [op.first for op in halves], [op.second for op in halves])
        return totals


Fold = Function | Combiner
