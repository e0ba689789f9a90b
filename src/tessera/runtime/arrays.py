"""`ts.empty` and its kin: arrays on any device. On the CPU they are NumPy arrays, 64-byte aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from tessera.errors import CallError, shown
from tessera.numerics.dtypes import DType, dtype_help, dtype_named, f32, from_numpy
from tessera.runtime.backend import default_device
from tessera.runtime.device import Device, as_device
from tessera.runtime.packing import number_in
from tessera.runtime.platforms import platform_of
from tessera.runtime.readers import reader_of, view_of
from tessera.runtime.shortage import memory_for

Shape = int | Sequence[int]


def _shape(shape: Any) -> tuple[int, ...]:
    sizes = cast(tuple[Any, ...], tuple(shape) if isinstance(shape, tuple | list) else (shape,))  # pyright: ignore[reportUnknownArgumentType]
    if not all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0 for size in sizes):
        raise CallError(
            f"{shape!r:.80} is not a shape", code="bad-shape", help="give a size, or a tuple of sizes from 0 on"
        )
    return tuple(int(size) for size in sizes)


def _dtype(dtype: Any) -> DType:
    if isinstance(dtype, str):
        return dtype_named(dtype)
    if not isinstance(dtype, DType):
        raise CallError(
            f"{dtype!r:.80} is not a dtype", code="bad-dtype", help=dtype_help(dtype, 'write ts.f32 or "f32"')
        )
    return dtype


def _number(value: Any, dtype: DType) -> Any:
    """Return the number of `dtype` that elements are set to."""
    try:
        return number_in(dtype, value)
    except ValueError as error:
        raise CallError(
            f"{shown(value)} is no {dtype}", code="wrong-scalar", help="give a number that the dtype holds"
        ) from error


def _device(device: Device | str | None) -> Device:
    return default_device() if device is None else as_device(device)


def empty(shape: Shape, dtype: DType | str = f32, device: Device | str | None = None) -> Any:
    """Return an array whose elements are not set.

    Args:
        shape: size of each dimension.
        dtype: element type, or its name.
        device: `"cpu"`, `"cuda"`, `"cuda:1"`; by default the CPU, or the GPU once `select_backend("ptx")` was
            called.

    Returns:
        A NumPy array on the CPU, a `DeviceArray` on a GPU.

    Raises:
        CallError: `bad-shape` or `bad-dtype`.
        LanguageError: `unknown-dtype`.
        TargetError: `unknown-device`.
        ResourceError: `out-of-memory`; on a GPU a DeviceError.
    """
    sizes, element, where = _shape(shape), _dtype(dtype), _device(device)
    return platform_of(where).empty(sizes, element, where)


def full(shape: Shape, value: float, dtype: DType | str = f32, device: Device | str | None = None) -> Any:
    """Return an array of one value; arguments as for `empty`.

    Raises:
        CallError: `wrong-scalar` for a value that a scalar argument of the dtype does not take, or as `empty`.
    """
    value = _number(value, _dtype(dtype))
    array = empty(shape, dtype, device)
    array.fill(value)
    return array


def zeros(shape: Shape, dtype: DType | str = f32, device: Device | str | None = None) -> Any:
    """Return an array of zeros; arguments as for `empty`."""
    return full(shape, 0, dtype, device)


def ones(shape: Shape, dtype: DType | str = f32, device: Device | str | None = None) -> Any:
    """Return an array of ones; arguments as for `empty`."""
    return full(shape, 1, dtype, device)


def asarray(source: Any, dtype: DType | str | None = None, device: Device | str | None = None) -> Any:
    """Return `source` as an array of a device and dtype, copied only when it must be.

    Elements are converted to a dtype as `ts.tile.cast` converts them: integers wrap around, a float becomes the nearest
    integer towards zero, or the least or largest there is, and NaN 0.

    Args:
        source: an array of any library, or nested numbers.
        dtype: element type wanted; by default the source's.
        device: device wanted; by default the source's (for numbers: as for `empty`).

    Raises:
        CallError: `not-an-array` for what is none, or has no memory; what is wrong with an array; `bad-dtype`.
        LanguageError: `unknown-dtype`.
        TargetError: `unknown-device`.
        ResourceError: `out-of-memory`.
    """
    kind = cast("type[Any]", type(source))
    reader = reader_of(kind)
    view = None if reader is None else view_of(source)[1]
    where = as_device(device) if device is not None else (view.device if view is not None else default_device())
    wanted = None if dtype is None else _dtype(dtype).storage
    if view is not None and view.device == where and wanted in (None, view.dtype):
        return from_dlpack(source)
    host = to_numpy(source) if view is not None else _from_numbers(source, wanted)
    found = _dtype_of(host)
    if wanted is not None and wanted != found:
        from tessera.numerics.conversions import convert  # loads ml_dtypes, which most programs need not

        with memory_for(host.shape):
            host = np.asarray(convert(host, found, wanted))
    made = empty(host.shape, wanted or found, where)
    platform_of(where).fill(made, host)
    return made


def _from_numbers(source: Any, wanted: DType | None) -> Any:
    try:
        host = np.asarray(source)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise _no_numbers(source) from error
    if host.dtype.kind not in "biufV":
        raise _no_numbers(source, f": its elements are of type {host.dtype}")
    if wanted is None and host.dtype == np.float64:
        return host.astype(np.float32)  # Python floats are weak: f32 unless a dtype is given
    return host


def _no_numbers(source: Any, why: str = "") -> CallError:
    return CallError(
        f"{source!r:.80} is not an array of numbers{why}",
        code="not-an-array",
        help="pass an array, or numbers in nested lists of equal lengths",
    )


def _dtype_of(host: Any) -> DType:
    dtype = from_numpy(host.dtype)
    if dtype is None:
        raise _no_numbers(host, f": its elements are of type {host.dtype}")
    return dtype


def from_dlpack(source: Any) -> Any:
    """Return an array over the memory of `source`: a NumPy array on the CPU, a `DeviceArray` on a GPU."""
    pointer, view, keep = view_of(source)
    return platform_of(view.device).borrow(source, pointer, view, keep)


def to_numpy(source: Any) -> Any:
    """Return `source` as a NumPy array: the same memory on the CPU, a copy from a GPU."""
    if isinstance(source, np.ndarray):
        return cast(Any, source)
    pointer, view, keep = view_of(source)
    return platform_of(view.device).to_numpy(source, pointer, view, keep)
