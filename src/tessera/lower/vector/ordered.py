"""Reductions in the order of `numerics.order`: chunk i with chunk i + n/2, until one is left.

A few chunks are combined in registers. Of many, each pass combines those that end in one place, which leaves a part of
them in scratch memory for the next pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from tessera.data import dataclass
from tessera.lower.combiners import Values
from tessera.lower.vector.nodes import Coord, Coords, Stored
from tessera.lower.vector.site import Site

Fold = Callable[[Site, Values, Values], Values]
ChunksAt = Callable[[SSAValue | int], Values]
"""Gives the chunk of each tile that has a number."""


@dataclass(frozen=True)
class Last:
    """The chunk after the whole ones, of which the first `lanes` lanes count."""

    number: int
    lanes: int


@dataclass(frozen=True)
class Tree:
    """Combines chunks in the given order.

    Args:
        fold: combines two.
        start: what changes nothing in a combination, None where there is no such value.
        branches: chunks that a pass combines, a power of two.
        partial: buffers for what passes leave, one a tile; none where one pass is enough.
    """

    fold: Fold
    start: SSAValue | None
    branches: int
    partial: Sequence[Stored]

    def combine(self, site: Site, full: int, at: ChunksAt, lanes: bool, rest: int = 0) -> Values:
        """Return the combination of all chunks.

        Args:
            site: where.
            full: number of whole chunks.
            at: gives them.
            lanes: whether chunks have lanes.
            rest: lanes that count of one more chunk, 0 for none.
        """
        count = full + (rest > 0)
        if count <= self.branches:
            return self._few(site, list(range(full)), at, Last(full, rest))
        apart = passes_leave(count, self.branches)
        terms, more = divmod(full, apart)

        def step(first: SSAValue | int, terms: int, last: int = 0) -> None:
            numbers = [site.writer.scalars.add(site.index(first), term * apart) for term in range(terms)]
            values = self._few(site, numbers, at, Last(full, last))
            for buffer, value in zip(self.partial, values, strict=True):
                site.store(buffer, _place(first, lanes), value)

        _span(site, 0, more, lambda first: step(first, terms + 1))
        if rest:
            site.scoped(lambda: step(more, terms, rest))
        _span(site, more + (rest > 0), apart, lambda first: step(first, terms))
        return self.combine(site, apart, lambda n: [b.emit(site, _place(n, lanes)) for b in self.partial], lanes)

    def _few(self, site: Site, numbers: Sequence[SSAValue | int], at: ChunksAt, last: Last) -> Values:
        """Combine a few chunks in registers, and after them the one that is not whole, if there is one."""
        chunks, valid = [at(number) for number in numbers], None
        if last.lanes:
            chunk, valid = site.scoped(lambda: self._last(site, at, last))
            chunks.append(chunk)
        while (count := len(chunks)) > 1:
            half = (1 << (count - 1).bit_length()) // 2
            folded = [self.fold(site, chunks[i], chunks[i + half]) for i in range(count - half)]
            if valid is not None:
                both = zip(folded[-1], chunks[count - half - 1], strict=True)
                folded[-1] = [site.apply("select", [valid, combined, alone]) for combined, alone in both]
                valid = None
            chunks = [*folded, *chunks[count - half : half]]
        return chunks[0]

    def _last(self, site: Site, at: ChunksAt, last: Last) -> tuple[Values, SSAValue | None]:
        """Return a chunk that ends past its row's end: neutral there, or with the mask of the lanes that count."""
        site.tail = last.lanes
        values, valid = at(last.number), site.valid()
        site.tail = None
        assert valid is not None
        if self.start is None:
            return values, valid
        start = self.start
        return [site.apply("select", [valid, value, start]) for value in values], None


def passes_leave(count: int, branches: int) -> int:
    """Return how many of `count` chunks the first pass leaves; 0 where they are few enough for none."""
    return 0 if count <= branches else (1 << (count - 1).bit_length()) // branches


def _place(number: SSAValue | int, lanes: bool) -> Coords:
    return Coord(number), Coord(0, lanes=lanes)


def _span(site: Site, first: int, end: int, body: Callable[[SSAValue | int], None]) -> None:
    """Loop over the numbers from `first` to `end`."""
    if end - first == 1:
        site.scoped(lambda: body(first))
    elif end > first:

        def iteration(at: SSAValue, _carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
            site.scoped(lambda: body(at))
            return []

        site.writer.loop(first, end, 1, [], iteration)
