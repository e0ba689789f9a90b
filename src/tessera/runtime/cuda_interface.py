"""What arrays of other libraries on NVIDIA GPUs say of themselves: `__cuda_array_interface__`, and DLPack's streams.

Source: Numba, "CUDA Array Interface (Version 3)"; the array API standard, `__dlpack__`.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tessera.numerics.dtypes import from_numpy
from tessera.runtime.cuda import device_of_pointer, wait_for_stream
from tessera.runtime.device import Device
from tessera.runtime.readers import in_elements, wrong_dtype
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
    facts = array.__cuda_array_interface__
    pointer, readonly = facts["data"]
    strides = facts.get("strides")
    producer = facts.get("stream")
    if producer not in (None, _LEGACY_STREAM):
        wait_for_stream(producer)
    device = device_of_pointer(pointer) if pointer else Device("cuda", 0)
    return pointer or 0, (facts["typestr"], tuple(facts["shape"]), strides, device, readonly), None


def _decode(traits: Traits) -> ArrayView:
    typestr, shape, strides, device, readonly = traits
    numpy_dtype = np.dtype(typestr)
    dtype = from_numpy(numpy_dtype)
    if dtype is None:
        raise wrong_dtype(typestr)
    steps = row_major(shape) if strides is None else in_elements(tuple(strides), numpy_dtype.itemsize)
    return ArrayView(shape, steps, dtype, device, bool(readonly))


READER = Reader(_read, _decode)
