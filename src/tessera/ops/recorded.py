"""What a call launched, as something to start again on other tensors that lie alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from threading import Lock
from typing import Any, cast

from tessera.driver.launch import stream_source
from tessera.driver.together import Together, together
from tessera.entry.tables import NotDirect
from tessera.ops import arrays
from tessera.ops.forms import Form, creator, form_of, part_of, viewed
from tessera.ops.watching import is_laid, range_of
from tessera.runtime.recording import Launched, Made, Range, Recorder

Give = Callable[[Sequence[Any]], Any]
"""Makes what a call returns of its tensors."""


class Repeat:
    """What a call launched, on other tensors that lie alike.

    Args:
        launches: its launches.
        forms: how each of its results lies.
        like: one of its tensors.
        give: makes what it returned, of its tensors and its results.
        explained: what it says that it ran.

    Raises:
        NotDirect: the driver lacks a function.
    """

    def __init__(self, launches: Together, forms: Sequence[Form], like: Any, give: Give, explained: Any) -> None:
        self.lock = Lock()
        """Held by a run: parameters are put where the last run's were."""
        create, self._is_here = creator(like.device)
        self.explained, self.give = explained, give
        self._create, self._run = create, launches.table.run
        kind = arrays.torch_dtypes()["u8"]
        memory = [((launches.bytes_,), (1,), kind)] * (launches.bytes_ > 0)
        self._made = (*((form.shape, form.strides, form.dtype) for form in forms), *memory)
        self._pick = itemgetter(0, -1 if memory else 0, *[1 + at for at in launches.owners])
        self._stream = stream_source([like], arrays.view(like, "argument").device)

    def take(self) -> bool:
        """Return whether this thread may run it, which then holds the lock."""
        return (self._is_here is None or self._is_here()) and self.lock.acquire(blocking=False)

    def __call__(self, tensors: list[Any], pointers: list[int]) -> list[Any]:
        """Start the launches, and let go of the lock.

        Args:
            tensors: the call's tensors.
            pointers: their addresses.

        Returns:
            The tensors, the results, and memory that may go once the launches are queued.

        Raises:
            ResourceError: `out-of-memory`.
        """
        create, starts, found = self._create, [0, *pointers], [*tensors]
        try:
            for shape, strides, dtype in self._made:
                one = create(shape, strides, dtype)
                found.append(one)
                starts.append(one.data_ptr())
            self._run(self._pick(starts), self._stream(tensors))
        except RuntimeError as error:
            if len(found) < len(tensors) + len(self._made):
                arrays.refuse_memory(error, self._made[len(found) - len(tensors)][0])
            raise
        finally:
            self.lock.release()
        return found


def ranges(tensors: Sequence[Any], pointers: Sequence[int]) -> list[Range]:
    """Return the memory of a call's tensors, each with the number of the first that starts there."""
    return [range_of((at, 0), one) for at, one in enumerate(tensors) if pointers.index(pointers[at]) == at]


class Results:
    """The tensors that a call gives: how they lie and whose memory theirs is.

    Args:
        tensors: those that the call was given.
        recorder: what recorded it.
        views: for those of the call's tensors that results may be views of, whether they may.
    """

    def __init__(self, tensors: Sequence[Any], recorder: Recorder, views: Sequence[bool] | None = None) -> None:
        self._tensors, self._recorder, self._views = tensors, recorder, views
        self.forms: list[Form] = []
        """How tensors lie that its repeats make."""
        self.owners: dict[Any, int] = {}
        """Which tensor has memory that the call took; those that it was given are counted first."""
        self.leaves: list[Any] = []
        """Tensors of its own that it gives."""

    def add(self, leaf: Any) -> Give | None:
        """Return what gives such a tensor, None where it is no tensor of its own."""
        given = next((at for at, one in enumerate(self._tensors) if one is leaf), None)
        if given is not None:
            return lambda tensors: tensors[given]
        form = form_of(leaf)
        if form is None:
            return None
        if form.count:
            owner, after = self._recorder.place_of(leaf.data_ptr())
            if isinstance(owner, int):
                return self._viewing(owner, leaf)
            is_whole = isinstance(owner, Made) and self._recorder.made[owner.number] == form.count * leaf.itemsize
            if after or not is_whole or not is_laid(leaf, arrays.view(leaf, "a result")):
                return None
            known = self.owners.get(owner)
            if known is not None:
                is_same = self._views is not None and self.forms[known - len(self._tensors)] == form
                return (lambda tensors: tensors[known]) if is_same else None
            self.owners[owner] = len(self._tensors) + len(self.forms)
        at = len(self._tensors) + len(self.forms)
        self.forms.append(form)
        self.leaves.append(leaf)
        return lambda tensors: tensors[at]

    def own(self, tensor: Any, owner: Made) -> None:
        """Let a tensor that the call made and does not give be one that its repeats make, too."""
        form = form_of(tensor)
        assert form is not None, "it is a tensor"
        self.owners[owner] = len(self._tensors) + len(self.forms)
        self.forms.append(form)

    def _viewing(self, at: int, leaf: Any) -> Give | None:
        """Return what gives a view of a tensor that the call was given."""
        if self._views is None or not self._views[at]:
            return None
        part = part_of(leaf, self._tensors[at])
        if part is None or part.after % leaf.itemsize:
            return None
        shape, strides, after = part.form.shape, part.form.strides, part.after // leaf.itemsize
        return lambda tensors: viewed(tensors[at], shape, strides, after)


def giver(result: Any, results: Results) -> Give | None:
    """Return what makes a result of tensors, None where it holds anything else; note its tensors."""
    if arrays.is_torch(result):
        return results.add(result)
    if result is None:
        return lambda tensors: None
    kind = cast(Any, type(result))
    if kind is dict:
        named = cast("dict[str, Any]", result)
        parts = {name: giver(one, results) for name, one in named.items()}
        known = {name: part for name, part in parts.items() if part is not None}
        if len(known) < len(parts):
            return None
        return lambda tensors: {name: part(tensors) for name, part in known.items()}
    if not isinstance(result, tuple):
        return None
    made = [giver(one, results) for one in cast("tuple[Any, ...]", result)]
    items = [part for part in made if part is not None]
    if len(items) < len(made) or not (kind is tuple or hasattr(kind, "_make")):
        return None
    build: Any = getattr(kind, "_make", kind)
    return lambda tensors: build([item(tensors) for item in items])


def repeat_of(recorder: Recorder, results: Results, like: Any, give: Give, explained: Any) -> Repeat | None:
    """Return what starts recorded launches again, None where the driver lacks a function.

    Args:
        recorder: what recorded them.
        results: what is given of them.
        like: a tensor of the call.
        give: makes what the call returned.
        explained: what it says that it ran.
    """
    owners: Mapping[Any, int] = results.owners
    renamed = [
        Launched(one.plan, tuple((owners.get(of, of), after) for of, after in one.places), one.scalars)
        for one in recorder.launches
    ]
    scratch = {Made(at): size for at, size in enumerate(recorder.made) if Made(at) not in owners}
    lives = dict.fromkeys(scratch, range(len(renamed)))
    device = arrays.view(like, "argument").device
    try:
        return Repeat(together(renamed, scratch, lives, device), results.forms, like, give, explained)
    except NotDirect:
        return None
