"""NumPy's arrays beside tensors in calls of a traced function: each becomes a tensor of its memory, or a copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tessera.errors import CallError, caller_location
from tessera.ops import arrays
from tessera.runtime.device import CPU, Device


def is_numpys(array: Any) -> bool:
    """Return whether an array is one of NumPy's."""
    return isinstance(array, np.ndarray)


def shares_memory(array: Any, device: Device) -> bool:
    """Return whether an array on a graph's device stays what it is, or becomes a tensor of the same memory."""
    if not is_numpys(array):
        return True
    inner = [stride for size, stride in zip(array.shape, array.strides, strict=True) if size > 1]
    return device == CPU and array.flags.writeable and all(one >= 0 and not one % array.itemsize for one in inner)


def as_tensor(array: Any, like: Any) -> Any:
    """Return an argument beside a tensor: one of NumPy's in the host's memory as a tensor of that memory.

    Raises:
        CallError: `mixed-libraries` where PyTorch has no tensor of that memory.
    """
    if not is_numpys(array) or arrays.view(like, "an argument").device != CPU:
        return array
    if shares_memory(array, CPU):
        return beside(array, like, CPU)
    raise CallError(
        f"an array of NumPy's, {arrays.view(array, 'an argument')}, is no tensor's memory, as the first argument's is",
        code="mixed-libraries",
        location=caller_location(),
        help="pass tensors alone, or a copy: np.ascontiguousarray(x), x.copy()",
    )


def beside(array: Any, like: Any, device: Device) -> Any:
    """Return an array as one of the library and the device of another one.

    Args:
        array: the array.
        like: an array on the device.
        device: the device.

    Raises:
        CallError: `wrong-device` for an array elsewhere that is none of NumPy's beside a tensor.
    """
    own = arrays.view(array, "an array of the program around")
    if is_numpys(array) and arrays.is_torch(like):
        return _tensor(array, arrays.torch_dtypes()[own.dtype.name], device).to(like.device)
    if own.device == device:
        return array
    raise CallError(
        f"an array of the program around is on {own.device}, the arguments are on {device}",
        code="wrong-device",
        location=caller_location(),
        help="move all arrays to one device",
    )


def _tensor(array: Any, kind: Any, device: Device) -> Any:
    torch: Any = sys.modules["torch"]
    held = array if shares_memory(array, device) else np.array(array, order="C")
    if held.dtype.isbuiltin == 1:
        return torch.from_numpy(held)
    bits = held.view(f"i{held.itemsize}")  # bfloat16 and float8 are no types of NumPy's own
    return torch.from_numpy(bits).view(kind)
