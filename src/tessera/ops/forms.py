"""How arrays lie in memory: what starts launches again makes arrays by that alone, without PyTorch's dispatcher."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np

from tessera.data import dataclass
from tessera.ops import arrays
from tessera.runtime.device import CPU


@dataclass(frozen=True, slots=True)
class Form:
    """How an array lies, from its first element on.

    Args:
        shape: its sizes.
        strides: how many elements apart neighbours are.
        dtype: the library's dtype.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any

    @property
    def is_dense(self) -> bool:
        """Whether its elements lie side by side, in any order."""
        step = 1
        for stride, size in sorted((stride, size) for stride, size in zip(self.strides, self.shape, strict=True)):
            if size == 1:
                continue
            if stride != step:
                return False
            step *= size
        return True

    @property
    def count(self) -> int:
        """How many elements it has."""
        found = 1
        for size in self.shape:
            found *= size
        return found


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor in the memory of another one.

    Args:
        after: how many bytes after that one's start it starts.
        form: how it lies.
    """

    after: int
    form: Form


def form_of(array: Any) -> Form | None:
    """Return how an array of PyTorch's or NumPy's lies, None for other arrays."""
    if isinstance(array, np.ndarray):
        held = cast(Any, array)
        return Form(held.shape, tuple(stride // held.itemsize for stride in held.strides), held.dtype)
    if not arrays.is_torch(array):
        return None
    return Form(tuple(array.shape), array.stride(), array.dtype)


def part_of(array: Any, whole: Any) -> Part | None:
    """Return a tensor as a part of another one's memory, None where it is none of the same dtype."""
    if array.dtype is not whole.dtype or not array.numel() or array.is_conj() or array.is_neg():
        return None
    if array.untyped_storage()._cdata != whole.untyped_storage()._cdata:
        return None
    return Part(array.data_ptr() - whole.data_ptr(), Form(tuple(array.shape), array.stride(), array.dtype))


@cache
def viewer() -> Any:
    """Return the function that gives a part of a tensor: `(tensor, shape, strides, elements after its start)`.

    It is what PyTorch's own compiled graphs call. PyTorch does not know what it gives as a view.
    """
    torch: Any = sys.modules["torch"]
    quick = getattr(getattr(torch._C._dynamo, "guards", None), "_reinterpret_tensor", None)
    return quick or viewed


def viewed(tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...], after: int) -> Any:
    """Return a part of a tensor that has its version: PyTorch refuses backward passes when either was changed since.

    Args:
        tensor: the tensor.
        shape: sizes.
        strides: how many elements apart neighbours are.
        after: how many elements after the tensor's start it starts.
    """
    return tensor.as_strided(shape, strides, tensor.storage_offset() + after).detach()


def typed(tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...], after: int, dtype: Any) -> Any:
    """Return a part of a tensor's memory as elements of another dtype.

    Args:
        tensor: the tensor.
        shape: sizes.
        strides: how many elements apart neighbours are.
        after: how many bytes after the tensor's start it starts.
        dtype: the dtype.
    """
    start = tensor.storage_offset() * tensor.dtype.itemsize + after
    torch: Any = sys.modules["torch"]
    made = torch.empty(0, dtype=dtype, device=tensor.device)
    return made.set_(tensor.untyped_storage(), start // dtype.itemsize, shape, strides)


def laid(tensor: Any, strides: tuple[int, ...]) -> Any:
    """Return a tensor with other strides: a copy."""
    torch: Any = sys.modules["torch"]
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


Creator = Callable[[tuple[int, ...], tuple[int, ...], Any], Any]
"""Makes an unset tensor: `(shape, strides, dtype)`."""


@cache
def creator(device: Any) -> tuple[Creator, Callable[[], bool] | None]:
    """Return what makes unset tensors on a device in the least time, and what says whether a thread may call it.

    It is what PyTorch's own compiled graphs call, a third of `new_empty`'s time. It makes them on the thread's current
    device; the second is None where that is this one.
    """
    torch: Any = sys.modules["torch"]
    quick = getattr(getattr(torch._C._dynamo, "guards", None), f"_empty_strided_{device.type}", None)
    module = getattr(torch, device.type, None)
    if quick is not None and module is not None:
        if device.type == CPU.kind or module.device_count() == 1:
            return quick, None
        current = getattr(torch._C, f"_{device.type}_getDevice", None)
        if current is not None and device.index is not None:
            return quick, lambda: current() == device.index
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device), None
