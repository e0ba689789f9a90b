"""Runs of a graph after its first: launches between other steps are started together, on one piece of memory.

What no other step reads lies in that memory, whose parts are used again as soon as what they held is not needed any
more.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

from tessera.data import dataclass
from tessera.driver.launch import stream_source, table_of
from tessera.graph.recorded import Item, Launches, Other, Roots, Run, Values, View, drop
from tessera.numerics.dtypes import u8
from tessera.ops import arrays
from tessera.runtime.device import Device
from tessera.runtime.platforms import Again, Table
from tessera.runtime.recording import Made, Place

ALIGNED = 256
"""Where parts of the memory start: at multiples of so many bytes."""
MOST_HELD = 1 << 25
"""Launches are not started together where arrays of more bytes could be freed between them."""


class Replay:
    """The steps of a graph for one kind of call.

    Args:
        items: the steps as they were recorded.
        like: the graph's first argument, value 0, beside which arrays are made; every run keeps its own.
        given: numbers of the arguments.
        results: numbers of the results.
        sizes: the bytes of each value that is an array.

    Raises:
        NotDirect: the driver lacks a function.
    """

    def __init__(
        self, items: Sequence[Item], like: Any, given: Sequence[int], results: Sequence[int], sizes: Mapping[int, int]
    ) -> None:
        self.lock = Lock()
        """Held by a run: parameters are put where the last run's were."""
        self._items = items
        self._roots = Roots()
        for item in items:
            self._roots.add(item)
        self._last = self._last_uses(results)
        self._arrays = _arrays(items, given, results)
        pieces = list(self._pieces(sizes))
        self._arrays |= {number for piece in pieces for number in self._outliving(piece)}
        device = arrays.view(like, "argument").device
        self.steps = [step for piece in pieces for step in self._steps(piece, like, device)]

    def _last_uses(self, results: Sequence[int]) -> dict[int, int]:
        """Return the last step that uses each value or its memory, of those that need not stay."""
        last: dict[int, int] = {}
        for at, item in enumerate(self._items):
            for number in _uses(item):
                last[number] = last[self._roots.of(number)[0]] = at
        for number in (0, *results):
            last.pop(number, None)
            last.pop(self._roots.of(number)[0], None)
        return last

    def _pieces(self, sizes: Mapping[int, int]) -> Generator[range]:
        """Cut the steps where one is no launch, and where much memory can be freed."""
        freed = dict[int, int]()
        for number, at in self._last.items():
            if number in self._arrays and self._roots.is_root(number):
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
                yield from (number for number in item.results if self._last.get(number, piece.stop) >= piece.stop)

    def _steps(self, piece: range, like: Any, device: Device) -> Generator[Run]:
        if not piece:
            return
        items = self._items[piece.start : piece.stop]
        gone = [number for number, at in self._last.items() if at in piece and number in self._arrays]
        launches = self._launches(piece)
        if launches.again:
            yield _Together(launches, table_of(launches.again, device), like, device)
        yield from (item.run for item in items if isinstance(item, Other))
        for item in items:
            if isinstance(item, View) and item.number in self._arrays:
                yield item.run
            elif isinstance(item, Launches):
                yield from (partial(_name, n, of) for n, of in item.same.items() if n in self._arrays)
        if gone:
            yield partial(drop, gone)

    def _launches(self, piece: range) -> _Piece:
        sizes: dict[Any, int] = {}
        lives: dict[Any, range] = {}
        makers: dict[int, arrays.Maker] = {}
        found: list[tuple[Any, list[Place], tuple[Any, ...]]] = []
        for at in piece:
            item = self._items[at]
            if not isinstance(item, Launches):
                continue
            for number, (make, size) in item.results.items():
                if number in self._arrays:
                    makers[number] = make
                else:
                    sizes[number], lives[number] = size, range(at, self._last[number] + 1)
            for number, size in enumerate(item.made):
                sizes[at, number], lives[at, number] = size, range(at, at + 1)
            for one in item.launches:
                places = [self._place(at, place) for place in one.places]
                found.append((one.plan, places, one.scalars))
        starts, whole = packed(sizes, lives)
        numbers = dict[Any, int]()
        again: list[Again] = []
        for plan, places, scalars in found:
            sources = [
                (_MEMORY, starts[owner] + after)
                if owner in starts
                else (_NOTHING if owner is None else numbers.setdefault(owner, _FIRST + len(numbers)), after)
                for owner, after in places
            ]
            again.append(Again(plan, tuple(sources), scalars))
        return _Piece(again, tuple(makers.items()), tuple(numbers), whole)

    def _place(self, at: int, place: Place) -> Place:
        """Return where an address of a step lies: in a value or in memory of its own."""
        owner, after = place
        if isinstance(owner, int):
            root, before = self._roots.of(owner)
            return root, before + after
        return ((at, owner.number) if isinstance(owner, Made) else owner), after


_NOTHING, _MEMORY, _FIRST = 0, 1, 2
"""Places among a run's addresses: of arrays without memory, of the memory that launches share, of the first array."""


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Launches that are started together.

    Args:
        again: the launches.
        makers: what makes each array that they give to other steps, with its number.
        numbers: the values whose addresses they take.
        bytes_: the size of the memory that they share.
    """

    again: list[Again]
    makers: tuple[tuple[int, arrays.Maker], ...]
    numbers: tuple[int, ...]
    bytes_: int


class _Together:
    """Starts the launches of a piece.

    Args:
        piece: the launches.
        table: the same as a table.
        like: an array such as all are.
        device: where they run.
    """

    __slots__ = ("_makers", "_memory", "_numbers", "_start", "_stream", "_table")

    def __init__(self, piece: _Piece, table: Table, like: Any, device: Device) -> None:
        self._makers, self._numbers, self._table = piece.makers, piece.numbers, table
        self._memory = arrays.quick_maker(like, (piece.bytes_,), u8) if piece.bytes_ else None
        self._start = arrays.starter(like)
        self._stream = stream_source([like], device)

    def __call__(self, values: Values) -> None:
        """Run the launches."""
        like, start = values[0], self._start
        for number, make in self._makers:
            values[number] = make(like)
        memory = None if self._memory is None else self._memory(like)
        addresses = [0, 0 if memory is None else start(memory)]
        addresses += [start(values[number]) for number in self._numbers]
        self._table.run(addresses, self._stream((like,)))


def _name(number: int, of: int, values: Values) -> None:
    values[number] = values[of]


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


def packed(sizes: Mapping[Any, int], lives: Mapping[Any, range]) -> tuple[dict[Any, int], int]:
    """Place pieces of memory in one, the largest first; those that live at once lie apart.

    Args:
        sizes: their bytes.
        lives: when each is needed.

    Returns:
        Where each starts, and the bytes of all.
    """
    starts: dict[Any, int] = {}
    whole = 0
    for key in sorted(sizes, key=lambda one: -sizes[one]):
        size, life = -(-sizes[key] // ALIGNED) * ALIGNED, lives[key]
        beside = [one for one in starts if lives[one].start < life.stop and life.start < lives[one].stop]
        at = 0
        for one in sorted(beside, key=starts.__getitem__):
            if at + size <= starts[one]:
                break
            at = max(at, starts[one] + -(-sizes[one] // ALIGNED) * ALIGNED)
        starts[key] = at
        whole = max(whole, at + size)
    return starts, whole
