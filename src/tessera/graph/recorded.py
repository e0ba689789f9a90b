"""Steps of a graph as they are run once and recorded: which launches they were, on which arrays."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from math import prod
from typing import Any

import numpy as np

from tessera.data import dataclass
from tessera.graph.forms import form_of
from tessera.graph.runs import Call, Run, Values
from tessera.ops import arrays
from tessera.runtime.recording import Launched, Made, Place, Range, Recorder, recording
from tessera.runtime.views import ArrayView


def drop(numbers: Sequence[int], values: Values) -> None:
    """Let values die that nothing needs any more."""
    for number in numbers:
        values[number] = None


def first_of(values: Values) -> Any:
    """Return an array, beside which others are made."""
    return next(value for value in values if value is not None)


CREATES = ("aten::new_empty", "aten::empty", "aten::empty_strided", "aten::empty_like")
"""Ops of PyTorch that only make memory."""


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
    first = first_of(values)
    known = [_range(roots.of(one), values[one]) for one in (*operands, *results) if values[one] is not None]
    with recording(known, exact) as recorder, _watched(first, recorder):
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
        if after or not is_whole or owner in named or not _lies(values[number], view):
            recorder.refuse("a result shares memory")
        named[owner] = number
    return named


def _lies(array: Any, view: ArrayView) -> bool:
    """Return whether an array is all of its memory, as a replay makes it: NumPy's are made in order only."""
    if arrays.is_torch(array):
        form = form_of(array)
        return form is not None and form.is_dense
    whole = view.span() == (0, prod(view.shape) * view.dtype.bytes)
    return whole and list(view.strides) == sorted(view.strides, reverse=True)


def _range(place: Place, array: Any) -> Range:
    view, start = arrays.view(array, "an operand"), arrays.start(array, "an operand")
    first, end = view.span()
    bytes_ = view.dtype.bytes
    axes = tuple((size, step * bytes_) for size, step in zip(view.shape, view.strides, strict=True) if size > 1)
    return Range(place, start, start + first, start + max(end, 1), (*axes, (bytes_, 1)))


@contextmanager
def _watched(like: Any, recorder: Recorder) -> Generator[None]:
    """Refuse what PyTorch does inside, other than views and new memory: no launch of ours does it again."""
    if not arrays.is_torch(like):
        yield
        return
    with _mode()(recorder):
        yield


@cache
def _mode() -> Any:
    torch: Any = sys.modules["torch"]
    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Watched(base):
        def __init__(self, recorder: Recorder) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self._recorder = recorder

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name
            if not (name in CREATES or (torch._C.Tag.inplace_view not in func.tags and is_view(func))):
                self._recorder.refuse(f"PyTorch runs {name}")
            return func(*args, **(kwargs or {}))

    return Watched


def is_view(func: Any) -> bool:
    """Return whether an op of PyTorch gives a view of an argument, and does nothing else."""
    schema = func._schema
    results = [one.alias_info for one in schema.returns]
    return not schema.is_mutable and any(info is not None and not info.is_write for info in results)
