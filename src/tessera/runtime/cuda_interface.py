"""What arrays of other libraries on NVIDIA GPUs say of themselves: `__cuda_array_interface__`, and DLPack's streams.

Source: Numba, "CUDA Array Interface (Version 3)"; the array API standard, `__dlpack__`.
"""

from __future__ import annotations

import sys
from operator import index
from typing import Any

import numpy as np

from tessera.numerics.dtypes import from_numpy
from tessera.runtime.cuda import device_of_pointer, wait_for_stream
from tessera.runtime.device import Device
from tessera.runtime.readers import FOREIGN_ERRORS, in_elements, refused, wrong_dtype
from tessera.runtime.views import ArrayView, Reader, Traits, row_major

_LEGACY_STREAM = 1
"""The number of CUDA's legacy default stream in both protocols; it waits for all blocking streams."""


def export_stream(array: Any) -> int:
    """Return the stream to name to an array that exports itself: CuPy's current one, else the default."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy.cuda.get_current_stream().ptr or _LEGACY_STREAM
    return _LEGACY_STREAM


def _read(array: Any) -> tuple[int, Traits, object]:
    try:
        pointer, readonly, typestr, shape, strides, producer = _facts(array.__cuda_array_interface__)
    except FOREIGN_ERRORS as error:
        raise refused("__cuda_array_interface__", error) from error
    if producer not in (None, _LEGACY_STREAM):
        wait_for_stream(producer)
    device = device_of_pointer(pointer) if pointer else Device("cuda", 0)
    return pointer, (typestr, shape, strides, device, readonly), None


def _facts(facts: Any) -> tuple[int, bool, str, tuple[int, ...], tuple[int, ...] | None, int | None]:
    """Return address, whether it is read-only, type, shape, strides and stream of the interface's dictionary."""
    pointer, readonly = facts["data"]
    shape = tuple(map(index, facts["shape"]))
    steps, producer = facts.get("strides"), facts.get("stream")
    strides = None if steps is None else tuple(map(index, steps))
    if min(shape, default=0) < 0 or (strides is not None and len(strides) != len(shape)):
        raise ValueError(f"the shape {shape} with the strides {strides}")
    stream = None if producer is None else index(producer)
    return index(pointer or 0), bool(readonly), str(facts["typestr"]), shape, strides, stream


def _decode(traits: Traits) -> ArrayView:
    typestr, shape, strides, device, readonly = traits
    try:
        numpy_dtype = np.dtype(typestr)
    except (TypeError, ValueError) as error:
        raise wrong_dtype(typestr) from error
    dtype = from_numpy(numpy_dtype)
    if dtype is None:
        raise wrong_dtype(typestr)
    steps = row_major(shape) if strides is None else in_elements(strides, numpy_dtype.itemsize)
    return ArrayView(shape, steps, dtype, device, readonly)


READER = Reader(_read, _decode)
