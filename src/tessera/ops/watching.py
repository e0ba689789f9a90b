"""Watches what the library does to arrays beside its launches, so that these can be started again alone."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from math import prod
from typing import Any

from tessera.driver.settings import settings
from tessera.ops import arrays
from tessera.ops.forms import form_of
from tessera.runtime.recording import Place, Range, Recorder, current
from tessera.runtime.views import ArrayView

CREATES = ("aten::new_empty", "aten::empty", "aten::empty_strided", "aten::empty_like")
"""Ops of PyTorch that only make memory."""


def range_of(place: Place, array: Any) -> Range:
    """Return the memory of an array that belongs to a place."""
    view, start = arrays.view(array, "an operand"), arrays.start(array, "an operand")
    first, end = view.span()
    bytes_ = view.dtype.bytes
    axes = tuple((size, step * bytes_) for size, step in zip(view.shape, view.strides, strict=True) if size > 1)
    return Range(place, start, start + first, start + max(end, 1), (*axes, (bytes_, 1)))


def is_laid(array: Any, view: ArrayView) -> bool:
    """Return whether an array is all of its memory, as a replay makes it: NumPy's are made in order only."""
    if arrays.is_torch(array):
        form = form_of(array)
        return form is not None and form.is_dense
    whole = view.span() == (0, prod(view.shape) * view.dtype.bytes)
    return whole and list(view.strides) == sorted(view.strides, reverse=True)


def has_modes(torch: Any) -> bool:
    """Return whether modes of PyTorch see what is called, other than that of a recorder."""
    recorder = current()
    own = recorder is not None and recorder.is_watching
    return bool(torch._C._len_torch_dispatch_stack() > own or torch._C._len_torch_function_stack())


def is_watched(torch: Any) -> bool:
    """Return whether something follows what runs, so that it has to run as it is written: a mode, a recorder, a user.

    Gradients of PyTorch's are not asked for.
    """
    if current() is not None or torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return True
    switches = settings()
    if switches.debug or switches.interpret or not switches.entry:
        return True
    return torch.autograd.forward_ad._current_level >= 0


def is_captured(torch: Any, tensor: Any) -> bool:
    """Return whether a graph of a tensor's device captures what is launched, and not what is prepared beside that."""
    ask = getattr(getattr(torch, tensor.device.type, None), "is_current_stream_capturing", None)
    return ask is not None and ask()


@contextmanager
def watched(like: Any, recorder: Recorder) -> Generator[None]:
    """Refuse what PyTorch does inside, other than views and new memory: no launch of ours does it again."""
    if not arrays.is_torch(like):
        yield
        return
    with _mode()(recorder):
        recorder.is_watching = True
        try:
            yield
        finally:
            recorder.is_watching = False


@cache
def _mode() -> Any:
    torch: Any = sys.modules["torch"]
    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Watched(base):
        supports_higher_order_operators = True

        def __init__(self, recorder: Recorder) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self._recorder = recorder

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_whole = isinstance(func, torch._ops.HigherOrderOperator)
            name = func.name() if is_whole else func._schema.name
            is_harmless = not is_whole and torch._C.Tag.inplace_view not in func.tags and is_view(func)
            if not (name in CREATES or is_harmless):
                self._recorder.refuse(f"PyTorch runs {name}")
            return func(*args, **(kwargs or {}))

    return Watched


def is_view(func: Any) -> bool:
    """Return whether an op of PyTorch gives a view of an argument, and does nothing else."""
    schema = func._schema
    results = [one.alias_info for one in schema.returns]
    return not schema.is_mutable and any(info is not None and not info.is_write for info in results)
