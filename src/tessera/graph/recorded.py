"""Steps of a graph as they are run once and recorded: which launches they were, on which arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tessera.data import dataclass
from tessera.graph.runs import Call, Run, Values
from tessera.ops import arrays
from tessera.ops.watching import is_laid, range_of, watched
from tessera.runtime.recording import Launched, Made, Place, Recorder, recording


def drop(numbers: Sequence[int], values: Values) -> None:
    """Let values die that nothing needs any more, but for the first one, beside which arrays are made."""
    for number in numbers:
        if number:
            values[number] = None


@dataclass(frozen=True, slots=True, eq=False)
class Launches:
    """A step that is launches.

    Args:
        launches: the launches; an address belongs to the number of a value, or to what is `Made`.
        made: bytes of each piece of memory that the step takes for itself.
        results: the bytes of each value that the step makes, by its number.
        same: of results that are operands, which the step has changed, or other results, which those are.
    """

    launches: tuple[Launched, ...]
    made: tuple[int, ...]
    results: Mapping[int, int]
    same: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A step that only says where a value lies.

    Args:
        number: the value.
        of: the value in whose memory it lies.
        after: how many bytes after that one's start it starts.
        run: the step.
    """

    number: int
    of: int
    after: int
    run: Run


@dataclass(frozen=True, slots=True, eq=False)
class Other:
    """A step that runs as it is.

    Args:
        run: the step.
        operands: numbers of the values that it reads.
        results: numbers of those that it makes.
    """

    run: Run
    operands: tuple[int, ...]
    results: tuple[int, ...]


Item = Launches | View | Other


class Roots:
    """In which value each value lies, and how far after its start."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, int]] = {}

    def add(self, item: Item) -> None:
        """Note what a step says of its results."""
        if isinstance(item, View):
            root, before = self.of(item.of)
            self._places[item.number] = root, before + item.after
        elif isinstance(item, Launches):
            self._places |= {number: self.of(of) for number, of in item.same.items()}

    def of(self, number: int) -> tuple[int, int]:
        """Return in which value one lies, and how far after its start: most lie in themselves."""
        return self._places.get(number, (number, 0))

    def is_root(self, number: int) -> bool:
        """Return whether a value has memory of its own."""
        return number not in self._places


def is_recorded(values: Sequence[Any]) -> bool:
    """Return whether steps on such arrays can be recorded: those of PyTorch and NumPy have no streams of their own."""
    return all(value is None or arrays.is_torch(value) or type(value) is np.ndarray for value in values)


def record(
    run: Run,
    operands: Sequence[int],
    results: Sequence[int],
    values: Values,
    roots: Roots,
    pure: bool,
    exact: Sequence[Place] | None = None,
) -> Item:
    """Run a step, and return what it was.

    Args:
        run: the step.
        operands: numbers of the values that it reads.
        results: numbers of the values that it makes.
        values: what has been computed, by number.
        roots: where values lie.
        pure: whether all that a step on NumPy's arrays does is launches, besides views.
        exact: where the pointers of each launch lie, if that is known.
    """
    results = list(dict.fromkeys(results))  # a group may write several parts of an array
    other = Other(run, tuple(operands), tuple(results))
    before = [values[number] for number in results]
    first = values[0]
    known = [range_of(roots.of(one), values[one]) for one in (*operands, *results) if values[one] is not None]
    with recording(known, exact) as recorder, watched(first, recorder):
        (run.watched if isinstance(run, Call) else run)(values)
        if not recorder.refused and not recorder.launches:
            return _view(other, recorder, values, roots) or other
        if not pure and not arrays.is_torch(first):
            recorder.refuse("what else is done to NumPy's arrays is not seen")
        if recorder.refused or any(values[number] is None for number in results):
            return other
        new = [number for number, old in zip(results, before, strict=True) if old is None]
        given = {_lie(values[number]): number for number in reversed(new)}
        given |= {id(values[number]): number for number in operands}
        source = {number: given.get(id(values[number]), given[_lie(values[number])]) for number in new}
        same = {number: of for number, of in source.items() if number != of}
        fresh = [number for number in new if number not in same]
        named = _named(fresh, recorder, values)
    if recorder.refused:
        return other
    renamed = tuple(
        Launched(one.plan, tuple((named.get(owner, owner), after) for owner, after in one.places), one.scalars)
        for one in recorder.launches
    )
    sizes = {number: arrays.nbytes(values[number], "a result") for number in fresh}
    made = [0 if Made(at) in named else size for at, size in enumerate(recorder.made)]
    return Launches(renamed, tuple(made), sizes, same)


def _view(other: Other, recorder: Recorder, values: Values, roots: Roots) -> View | None:
    """Return a step that launches nothing as a view, None where it is none."""
    if len(other.operands) != 1 or len(other.results) != 1:
        return None
    source, result = (values[one] for one in (*other.operands, *other.results))
    if result is None or not prod(source.shape) or not prod(result.shape):
        return None
    owner, after = recorder.place_of(arrays.start(result, "a view"))
    root, before = roots.of(other.operands[0])
    if recorder.refused or owner != root:
        return None
    return View(other.results[0], other.operands[0], after - before, other.run)


def _lie(array: Any) -> Any:
    """Return what is the same for results that lie at the same place."""
    view = arrays.view(array, "a result")
    if not prod(view.shape):
        return id(array)
    return arrays.start(array, "a result"), view.shape, view.strides, view.dtype


def _named(fresh: Sequence[int], recorder: Recorder, values: Values) -> dict[Any, int]:
    """Return which pieces of memory are results; all of each has to be one, in order."""
    named: dict[Any, int] = {}
    for number in fresh:
        view = arrays.view(values[number], "a result")
        if not prod(view.shape):
            continue
        owner, after = recorder.place_of(arrays.start(values[number], "a result"))
        is_whole = isinstance(owner, Made) and recorder.made[owner.number] == prod(view.shape) * view.dtype.bytes
        if after or not is_whole or owner in named or not is_laid(values[number], view):
            recorder.refuse("a result shares memory")
        named[owner] = number
    return named
