"""Calls of library ops that are like earlier ones: what those launched is started again, without the Python between.

A call's second run of its kind is watched. Where all that it does is launches on its tensors and on memory of its own,
later calls of the kind make their results and start the launches. A kind is everything that decides what an op does:
shapes, strides, dtypes, devices and alignments of tensors, which of them need gradients, all other arguments, the
numerics profile. Calls that PyTorch traces or dispatches, that change their arguments, or that take anything but
PyTorch's tensors and plain values run as they are written; those that it differentiates are served by `ops.followed`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from inspect import signature
from re import sub
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

from tessera.errors import CallError
from tessera.numerics.dtypes import DType
from tessera.numerics.profiles import current_profile
from tessera.ops.followed import Followed, followed, lost
from tessera.ops.recorded import Repeat, Results, giver, ranges, repeat_of
from tessera.ops.refusals import refused
from tessera.ops.rules import RULES
from tessera.ops.watching import is_captured, is_watched, watched
from tessera.runtime.recording import recording

_P = ParamSpec("_P")
_R = TypeVar("_R")

MOST_KNOWN = 1024
"""Kinds of calls of an op that are remembered; with one more, all are forgotten."""
_PLAIN = (type(None), bool, int, str, DType)
_explained: dict[int, Any] = {}
"""What the last call of an op ran, by the object's number, where it was a repeat."""


_Asked = tuple[Any, list[Any], list[int], bool]
"""A call: its kind, the tensors among its arguments, their addresses, and whether PyTorch differentiates it."""


_Known = dict[Any, Repeat | Followed | Literal["once", "never"]]
"""What is known of kinds of calls: what serves them, that one was seen, or that they run as they are written."""


def repeated(function: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Let a method of an op start again what calls of the same kind launched."""
    known: _Known = {}

    @wraps(function)
    def call(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        torch: Any = sys.modules.get("torch")
        if torch is None or torch.compiler.is_compiling():
            return function(self, *args, **kwargs)
        _explained.pop(id(self), None)
        asked = _asked(torch, self, args, kwargs)
        if asked is None:
            return function(self, *args, **kwargs)
        key, tensors, pointers, _is_followed = asked
        found = known.get(key)
        if isinstance(found, Repeat) and found.take():
            result = found.give(found(tensors, pointers))
            _explained[id(self)] = found.explained
            return result
        if isinstance(found, Followed) and found.forward.take():
            result = found.called(tensors, found.forward(tensors, pointers))
            _explained[id(self)] = found.forward.explained
            return result
        return _learned(known, function, asked, self, *args, **kwargs)

    return call


def _learned(known: _Known, function: Callable[..., _R], asked: _Asked, /, *args: Any, **kwargs: Any) -> _R:
    """Run a call as it is written, and learn what its kind launches at the second time."""
    key, tensors, pointers, is_followed = asked
    found = known.get(key)
    if found == "once" and not is_captured(sys.modules["torch"], tensors[0]):
        known[key] = "never"
        if not is_followed:
            result, known[key] = _recorded(lambda: function(*args, **kwargs), args[0], tensors, pointers)
            return result
        both = followed(lambda given: _on(given, function, args, kwargs), _name(args[0]), tensors, pointers)
        if both is not None:
            result, known[key] = both
            return result
    if found is not None:
        return function(*args, **kwargs)
    versions = _versions(tensors) if is_followed else []
    result = function(*args, **kwargs)
    if is_followed:
        for at in lost(result, tensors):
            _refuse(function, tensors[at], *args, **kwargs)
    if len(known) >= MOST_KNOWN:
        known.clear()
    is_changed = is_followed and _versions(tensors) != versions
    known[key] = "never" if is_changed else "once"  # what changes tensors is not run twice
    return result


def _versions(tensors: Sequence[Any]) -> list[int]:
    """Return how often tensors have been changed, as far as PyTorch counts it."""
    return [one._version for one in tensors if not one.is_inference()]


def _refuse(function: Any, tensor: Any, *args: Any, **kwargs: Any) -> None:
    """Say that no result depends on an argument whose gradient may be wanted.

    Raises:
        CallError: `no-gradient`.
    """
    given = signature(function).bind(*args, **kwargs).arguments
    name = next(name for name, value in given.items() if value is tensor)
    raise refused(f"{name} has no gradient", "no-gradient", "detach it, or call the op under torch.no_grad()")


def _on(given: Sequence[Any], function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a method with other tensors; return what it gives, and what the op says that it ran."""
    torch: Any = sys.modules["torch"]
    rest = iter(given)
    whole = [next(rest) if isinstance(one, torch.Tensor) else one for one in (*args, *kwargs.values())]
    found = function(*whole[: len(args)], **dict(zip(kwargs, whole[len(args) :], strict=True)))
    return found, _ran(args[0])


def _name(owner: Any) -> str:
    """Return the name of an op for PyTorch's graph."""
    return sub("(?<=[a-z])(?=[A-Z])", "_", type(owner).__name__).lower()


def explaining(function: Callable[[Any], _R]) -> Callable[[Any], _R]:
    """Let a method that says what an op's last call ran know of calls that were repeats."""

    @wraps(function)
    def explain(self: Any) -> _R:
        found = _explained.get(id(self))
        return function(self) if found is None else found

    return explain


def _asked(torch: Any, owner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Asked | None:
    """Return a call of `owner`, None for one that has to run as it is written."""
    if is_watched(torch) or kwargs.get("stream") is not None:  # a repeat runs on the stream that PyTorch has
        return None
    tensor, parameter, follows, needs = torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled(), False
    parts: list[Any] = [owner, len(args), *kwargs]
    tensors: list[Any] = []
    pointers: list[int] = []
    for one in (*args, *kwargs.values()):
        kind = cast("type[object]", type(one))
        if kind is tensor or kind is parameter:
            asks = follows and one.requires_grad
            needs = needs or asks
            try:
                pointer = one.data_ptr()
                parts += one.shape, one.stride(), one.dtype, one.device, pointer & 15, one.is_neg(), asks
            except (RuntimeError, NotImplementedError):  # a tensor without memory
                return None
            tensors.append(one)
            pointers.append(pointer)
        elif kind in _PLAIN:
            parts += kind, one
        else:
            part = _part(one)
            if part is None:
                return None
            parts += part
    if not tensors:
        return None
    alike = () if len(set(pointers)) == len(pointers) else tuple(map(pointers.index, pointers))
    if needs and not _is_simple(torch, tensors, alike):
        return None
    return (current_profile(), RULES.get(), alike, *parts), tensors, pointers, needs


def _is_simple(torch: Any, tensors: Sequence[Any], alike: Sequence[int]) -> bool:
    """Return whether PyTorch itself keeps what gradients need, and each memory is one tensor's."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) or torch._C._functorch.peek_interpreter_stack():
        return False
    return all(one is tensors[at] for one, at in zip(tensors, alike, strict=False))


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
        parts: list[Any] = []
        for one in value:
            part = _part(one, levels - 1)
            if part is None:
                return None
            parts.append(part)
        return kind, tuple(parts)
    return None


def _recorded(
    run: Callable[[], _R], owner: Any, tensors: Sequence[Any], pointers: Sequence[int]
) -> tuple[_R, Repeat | Literal["never"]]:
    """Run a call; return what it gives, and what to start for later ones of its kind."""
    with recording(ranges(tensors, pointers)) as recorder, watched(tensors[0], recorder):
        result = run()
        results = Results(tensors, recorder)
        is_known = not (recorder.refused or recorder.changes) and recorder.launches
        give = giver(result, results) if is_known else None
    if give is None or recorder.refused or any(one.requires_grad for one in results.leaves):
        return result, "never"
    return result, repeat_of(recorder, results, tensors[0], give, _ran(owner)) or "never"


def _ran(owner: Any) -> Any:
    """Return what an op says that it ran, None where it says nothing."""
    with suppress(AttributeError, CallError):
        return owner.explain()
    return None
