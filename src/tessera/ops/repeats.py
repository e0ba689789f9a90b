"""Calls of library ops that are like earlier ones: what those launched is started again, without the Python between.

A call's second run of its kind is watched. Where all that it does is launches on its tensors and on memory of its own,
later calls of the kind make their results and start the launches. A kind is everything that decides what an op does:
shapes, strides, dtypes, devices and alignments of tensors, all other arguments, the numerics profile. Calls that
PyTorch follows, traces or dispatches otherwise, that change their arguments, or that take anything but PyTorch's
tensors and plain values run as they are written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from threading import Lock
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar, cast

from tessera.driver.launch import stream_source
from tessera.driver.settings import settings
from tessera.driver.together import Together, together
from tessera.entry.tables import NotDirect
from tessera.errors import CallError
from tessera.numerics.dtypes import DType
from tessera.numerics.profiles import current_profile
from tessera.ops import arrays
from tessera.ops.forms import Form, creator, form_of
from tessera.ops.rules import RULES
from tessera.ops.watching import has_modes, is_laid, range_of, watched
from tessera.runtime.recording import Launched, Made, Recorder, current, recording

_P = ParamSpec("_P")
_R = TypeVar("_R")

MOST_KNOWN = 1024
"""Kinds of calls of an op that are remembered; with one more, all are forgotten."""
_PLAIN = (type(None), bool, int, str, DType)
_explained: dict[int, Any] = {}
"""What the last call of an op ran, by the object's number, where it was a repeat."""

Give = Callable[[Sequence[Any]], Any]
"""Makes what a call returns of its tensors."""


def repeated(function: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Let a method of an op start again what calls of the same kind launched."""
    known: dict[Any, Repeat | Literal["once", "never"]] = {}

    @wraps(function)
    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        torch: Any = sys.modules.get("torch")
        if torch is None or torch.compiler.is_compiling():
            return function(self, *args, **kwargs)
        _explained.pop(id(self), None)
        asked = _asked(torch, self, args, kwargs)
        if asked is None:
            return function(self, *args, **kwargs)
        found = known.get(asked.key)
        if isinstance(found, Repeat) and found.take():
            try:
                result = found(asked)
            finally:
                found.lock.release()
            _explained[id(self)] = found.explained
            return result
        if found == "once" and not _is_captured(torch, asked):
            known[asked.key] = "never"
            result, known[asked.key] = _recorded(lambda: function(self, *args, **kwargs), self, asked)
            return result
        result = function(self, *args, **kwargs)
        if found is None:
            if len(known) >= MOST_KNOWN:
                known.clear()
            known[asked.key] = "once"
        return result

    return call


def explaining(function: Callable[[Any], _R]) -> Callable[[Any], _R]:
    """Let a method that says what an op's last call ran know of calls that were repeats."""

    @wraps(function)
    def explain(self: Any) -> _R:
        found = _explained.get(id(self))
        return function(self) if found is None else found

    return explain


class _Asked(NamedTuple):
    """A call.

    Args:
        key: its kind.
        tensors: those among its arguments.
        pointers: their addresses.
    """

    key: Any
    tensors: list[Any]
    pointers: list[int]


def _asked(torch: Any, owner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Asked | None:
    """Return a call of `owner`, None for one that has to run as it is written."""
    if has_modes(torch) or current() is not None:
        return None
    switches = settings()
    if switches.debug or switches.interpret or not switches.entry or torch.autograd.forward_ad._current_level >= 0:
        return None
    if kwargs.get("stream") is not None:  # a repeat runs on the stream that PyTorch has
        return None
    plain, follows = (torch.Tensor, torch.nn.Parameter), torch.is_grad_enabled()
    parts: list[Any] = []
    tensors: list[Any] = []
    pointers: list[int] = []
    for one in (*args, *kwargs.values()):
        if type(one) not in plain:
            part = _part(one)
            if part is None:
                return None
            parts.append(part)
            continue
        if follows and one.requires_grad:
            return None
        try:
            pointer = one.data_ptr()
            parts.append((one.shape, one.stride(), one.dtype, one.device, pointer & 15, one.is_neg()))
        except (RuntimeError, NotImplementedError):  # a tensor without memory
            return None
        tensors.append(one)
        pointers.append(pointer)
    if not tensors:
        return None
    alike = () if len(set(pointers)) == len(pointers) else tuple(map(pointers.index, pointers))
    key = owner, current_profile(), RULES.get(), len(args), tuple(kwargs), alike, tuple(parts)
    return _Asked(key, tensors, pointers)


def _is_captured(torch: Any, call: _Asked) -> bool:
    """Return whether a graph of the device captures what is launched, and not what is prepared beside that."""
    ask = getattr(getattr(torch, call.tensors[0].device.type, None), "is_current_stream_capturing", None)
    return ask is not None and ask()


def _part(value: Any, levels: int = 3) -> Any:
    """Return what stands for a plain value in the key of a call, None for any other.

    Args:
        value: the value.
        levels: how deep lists may lie in each other; one may lie in itself.
    """
    kind = cast("type[object]", type(value))
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return kind, value.hex()
    if levels and (kind is tuple or kind is list):
        parts = tuple(_part(one, levels - 1) for one in value)
        return None if None in parts else (kind, parts)
    return None


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
        self.explained = explained
        self._create, self._give = create, give
        self._run, self._order = launches.table.run, launches.owners
        self._forms = [(form.shape, form.strides, form.dtype) for form in forms]
        kind = arrays.torch_dtypes()["u8"]
        self._memory = [((launches.bytes_,), (1,), kind)] * (launches.bytes_ > 0)
        self._stream = stream_source([like], arrays.view(like, "argument").device)

    def take(self) -> bool:
        """Return whether this thread may run it, which then holds the lock."""
        return (self._is_here is None or self._is_here()) and self.lock.acquire(blocking=False)

    def __call__(self, call: _Asked) -> Any:
        """Start the launches.

        Raises:
            ResourceError: `out-of-memory`.
        """
        create, made = self._create, list[Any]()
        try:
            for shape, strides, dtype in (*self._forms, *self._memory):
                made.append(create(shape, strides, dtype))
        except RuntimeError as error:
            arrays.refuse_memory(error, (*self._forms, *self._memory)[len(made)][0])
            raise
        starts = [*call.pointers, *[one.data_ptr() for one in made]]
        memory = starts[-1] if self._memory else 0
        self._run((0, memory, *[starts[at] for at in self._order]), self._stream(call.tensors))
        return self._give([*call.tensors, *made])


def _recorded(run: Callable[[], _R], owner: Any, call: _Asked) -> tuple[_R, Repeat | Literal["never"]]:
    """Run a call; return what it gives, and what to start for later ones of its kind."""
    known = [
        range_of((at, 0), one) for at, one in enumerate(call.tensors) if call.pointers.index(call.pointers[at]) == at
    ]
    with recording(known) as recorder, watched(call.tensors[0], recorder):
        result = run()
        found = (
            None if recorder.refused or recorder.changes or not recorder.launches else _results(result, call, recorder)
        )
    if found is None or recorder.refused:
        return result, "never"
    give, forms, owners = found
    renamed = [
        Launched(one.plan, tuple((owners.get(of, of), after) for of, after in one.places), one.scalars)
        for one in recorder.launches
    ]
    scratch = {Made(at): size for at, size in enumerate(recorder.made) if Made(at) not in owners}
    lives = dict.fromkeys(scratch, range(len(renamed)))
    device = arrays.view(call.tensors[0], "argument").device
    explained = None
    with suppress(AttributeError, CallError):
        explained = owner.explain()
    try:
        return result, Repeat(together(renamed, scratch, lives, device), forms, call.tensors[0], give, explained)
    except NotDirect:
        return result, "never"


def _results(result: Any, call: _Asked, recorder: Recorder) -> tuple[Give, list[Form], dict[Any, int]] | None:
    """Return what makes a result anew, how the tensors that it needs lie, and which memory theirs is."""
    leaves: list[Any] = []
    numbers: list[int] = []
    give = _giver(result, leaves, numbers)
    if give is None:
        return None
    owners: dict[Any, int] = {}
    forms: list[Form] = []
    before = len(call.tensors)
    for leaf in leaves:
        given = next((at for at, one in enumerate(call.tensors) if one is leaf), None)
        if given is not None:
            numbers.append(given)
            continue
        form = form_of(leaf)
        if form is None or leaf.requires_grad:
            return None
        if form.count:
            owner, after = recorder.place_of(leaf.data_ptr())
            is_whole = isinstance(owner, Made) and recorder.made[owner.number] == form.count * leaf.itemsize
            if after or not is_whole or owner in owners or not is_laid(leaf, arrays.view(leaf, "a result")):
                return None
            owners[owner] = before + len(forms)
        numbers.append(before + len(forms))
        forms.append(form)
    return give, forms, owners


def _giver(result: Any, leaves: list[Any], numbers: list[int]) -> Give | None:
    """Return what makes a result of tensors, None where it holds anything else; note its tensors.

    Args:
        result: what a call gave.
        leaves: takes its tensors, in order.
        numbers: will hold which tensor each of these is.
    """
    if arrays.is_torch(result):
        at = len(leaves)
        leaves.append(result)
        return lambda tensors: tensors[numbers[at]]
    if result is None:
        return lambda tensors: None
    kind = cast(Any, type(result))
    if kind is dict:
        named = cast("dict[str, Any]", result)
        parts = {name: _giver(one, leaves, numbers) for name, one in named.items()}
        known = {name: part for name, part in parts.items() if part is not None}
        if len(known) < len(parts):
            return None
        return lambda tensors: {name: part(tensors) for name, part in known.items()}
    if not isinstance(result, tuple):
        return None
    made = [_giver(one, leaves, numbers) for one in cast("tuple[Any, ...]", result)]
    items = [part for part in made if part is not None]
    if len(items) < len(made) or not (kind is tuple or hasattr(kind, "_make")):
        return None
    build: Any = getattr(kind, "_make", kind)
    return lambda tensors: build([item(tensors) for item in items])
