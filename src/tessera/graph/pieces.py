"""How the steps of a recorded run are put together: launches between others, on one piece of memory.

What no other step reads lies in that memory, whose parts are used again as soon as what they held is not needed any
more.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tessera.data import dataclass
from tessera.driver.together import Together, together
from tessera.graph.edges import Edges
from tessera.graph.recorded import Item, Launches, Other, Roots, View
from tessera.ops import arrays
from tessera.ops.forms import Form, Part
from tessera.runtime.recording import Launched, Made, Place

MOST_HELD = 1 << 25
"""Launches are not started together where arrays of more bytes could be freed between them."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A run of a graph.

    Args:
        items: the steps as they were recorded.
        like: the graph's first argument, value 0, beside which arrays are made; every run keeps its own.
        given: numbers of the arguments.
        results: numbers of the results.
        bytes_: the bytes of each value that is an array.
        forms: how each value lies.
        taken: how each argument was given of whose memory it is the start, None where it was made anew.
        edges: what is done to arguments and results, None for nothing.
        wanted: each result that is an array as a part of the graph's, None where it was made anew.
        sizes: the sizes of symbols.
        count: how many values there are.
    """

    items: Sequence[Item]
    like: Any
    given: Sequence[int]
    results: Sequence[int]
    bytes_: Mapping[int, int]
    forms: Mapping[int, Form]
    taken: Sequence[Form | None]
    edges: Edges | None
    wanted: Sequence[Part | None]
    sizes: Mapping[str, int]
    count: int


class Pieces:
    """How steps are put together.

    Args:
        recording: the steps.

    Raises:
        NotDirect: `launches` does, where the driver lacks a function.
    """

    def __init__(self, recording: Recording) -> None:
        self._items = recording.items
        self.roots = Roots()
        for item in self._items:
            self.roots.add(item)
        kept = {*recording.results}
        if recording.edges is not None:
            kept |= {recording.given[at] for together in recording.edges.written for at, _ in together}
        self.last = self._last_uses(kept)
        self.arrays = _arrays(self._items, recording.given, recording.results)
        self.pieces = [piece for piece in self._cut(recording.bytes_) if piece]
        """Steps that are launched together, or a single one that is no launch."""
        self.arrays |= {number for piece in self.pieces for number in self._outliving(piece)}
        self._device = arrays.view(recording.like, "argument").device

    def _last_uses(self, kept: set[int]) -> dict[int, int]:
        """Return the last step that uses each value or its memory, of those that need not stay."""
        last: dict[int, int] = {}
        for at, item in enumerate(self._items):
            for number in _uses(item):
                last[number] = last[self.roots.of(number)[0]] = at
        for number in (0, *kept):
            last.pop(number, None)
            last.pop(self.roots.of(number)[0], None)
        return last

    def _cut(self, sizes: Mapping[int, int]) -> Generator[range]:
        """Cut the steps where one is no launch, and where much memory can be freed."""
        freed = dict[int, int]()
        for number, at in self.last.items():
            if number in self.arrays and self.roots.is_root(number):
                freed[at] = freed.get(at, 0) + sizes.get(number, 0)
        first = held = 0
        for at, item in enumerate(self._items):
            if isinstance(item, Other):
                yield range(first, at)
                yield range(at, at + 1)
                first, held = at + 1, 0
            else:
                held += freed.get(at, 0)
                if held > MOST_HELD:
                    yield range(first, at + 1)
                    first, held = at + 1, 0
        yield range(first, len(self._items))

    def _outliving(self, piece: range) -> Generator[int]:
        """Return the values that launches of a piece make for another one."""
        for item in self._items[piece.start : piece.stop]:
            if isinstance(item, Launches):
                yield from (number for number in item.results if self.last.get(number, piece.stop) >= piece.stop)

    def gone(self, piece: range) -> list[int]:
        """Return the values that nothing needs after a piece."""
        return [number for number, at in self.last.items() if at in piece and number in self.arrays]

    def launches(self, piece: range) -> tuple[Together, tuple[int, ...]] | None:
        """Return the launches of a piece and the arrays that they give to other steps, None where it has none."""
        sizes: dict[Any, int] = {}
        lives: dict[Any, range] = {}
        made: list[int] = []
        found: list[Launched] = []
        for at in piece:
            item = self._items[at]
            if not isinstance(item, Launches):
                continue
            for number, size in item.results.items():
                if number in self.arrays:
                    made.append(number)
                else:
                    sizes[number], lives[number] = size, range(at, self.last[number] + 1)
            for number, size in enumerate(item.made):
                sizes[at, number], lives[at, number] = size, range(at, at + 1)
            for one in item.launches:
                found.append(Launched(one.plan, tuple(self._place(at, place) for place in one.places), one.scalars))
        if not found:
            return None
        return together(found, sizes, lives, self._device), tuple(made)

    def _place(self, at: int, place: Place) -> Place:
        """Return where an address of a step lies: in a value or in memory of its own."""
        owner, after = place
        if isinstance(owner, int):
            root, before = self.roots.of(owner)
            return root, before + after
        return ((at, owner.number) if isinstance(owner, Made) else owner), after


def _uses(item: Item) -> set[int]:
    """Return the numbers of the values that a step reads or makes."""
    if isinstance(item, View):
        return {item.number, item.of}
    if isinstance(item, Other):
        return {*item.operands, *item.results}
    named = {*item.results, *item.same, *item.same.values()}
    return named | {owner for one in item.launches for owner, _ in one.places if isinstance(owner, int)}


def _arrays(items: Sequence[Item], given: Sequence[int], results: Sequence[int]) -> set[int]:
    """Return the values that have to be arrays: other steps take or make them, or they come or go."""
    found = {*given, *results}
    for item in reversed(items):
        if isinstance(item, Other):
            found |= {*item.operands, *item.results}
        elif isinstance(item, Launches):
            found |= {of for number, of in item.same.items() if number in found}
        elif item.number in found:
            found.add(item.of)
    return found
