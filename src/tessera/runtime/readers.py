"""Reads array objects of every library without a copy: address, shape, strides, dtype, device.

Each kind of array has a `Reader` of two halves. `read` runs at every call and only collects raw, hashable
facts (the *traits*): equal traits mean an equal launch. `decode` runs once per distinct traits and gives them
meaning, or says what does not fit. Protocols of one kind of device are read by its platform.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

from tessera.errors import CallError
from tessera.numerics.dtypes import DType, dtype_named, from_numpy
from tessera.runtime.device import CPU, Device, device_kinds
from tessera.runtime.platforms import platforms
from tessera.runtime.views import ArrayView, Reader, Traits, row_major


def array_help() -> str:
    """Return what to pass as an array."""
    protocols = [one.array_protocol for one in platforms() if one.array_protocol]
    return f"pass a NumPy array, a PyTorch tensor, or an object with {' or '.join(['DLPack', *protocols])}"


def wrong_dtype(dtype: object) -> CallError:
    """Return the error for an array whose elements no dtype describes."""
    return CallError(
        f"elements of type {dtype} have no Tessera dtype", code="wrong-dtype", help="convert the array first"
    )


FOREIGN_ERRORS = (ArithmeticError, AttributeError, BufferError, LookupError, RuntimeError, TypeError, ValueError)
"""What another library's object raises that gives no array, and what reading wrong facts of it raises."""


def refused(protocol: str, error: Exception) -> CallError:
    """Return the error for an object that has a protocol of arrays and gives no array by it."""
    return CallError(
        f"the array refuses {protocol}: {type(error).__name__}: {error}",
        code="not-an-array",
        help="detach it, or copy it to an array that can be shared",
    )


def in_elements(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return strides of bytes in elements.

    Raises:
        CallError: `misaligned` where one is not a multiple of an element.
    """
    if any(stride % itemsize for stride in strides):
        raise CallError(
            f"strides of {strides} bytes are not multiples of the element's {itemsize} bytes",
            code="misaligned",
            help="copy the array (a field of a structured array is stored like this)",
        )
    return tuple(stride // itemsize for stride in strides)


# NumPy. `a.ctypes.data` and `__array_interface__` cost 0.8 µs each, the field itself 0.1 µs. The public ABI
# has `data` right after the object header; the probe keeps us honest where the header is different.
_DATA_OFFSET = object.__basicsize__
_address = ctypes.c_void_p.from_address


def _field_is_there() -> bool:
    probe = np.zeros(8, np.uint8)[3:]
    return _address(id(probe) + _DATA_OFFSET).value == probe.ctypes.data


def _start_of_numpy(array: Any) -> int:
    """Return the address of a NumPy array's first element."""
    return _address(id(array) + _DATA_OFFSET).value or 0


def _start_of_numpy_slowly(array: Any) -> int:
    return array.ctypes.data


start_of_numpy = _start_of_numpy if _field_is_there() else _start_of_numpy_slowly


def _read_numpy(array: Any) -> tuple[int, Traits, object]:
    pointer = _address(id(array) + _DATA_OFFSET).value or 0
    return pointer, (array.dtype, array.shape, array.strides, array.flags.writeable), None


def _read_numpy_slowly(array: Any) -> tuple[int, Traits, object]:
    return array.ctypes.data, (array.dtype, array.shape, array.strides, array.flags.writeable), None


def _decode_numpy(traits: Traits) -> ArrayView:
    numpy_dtype, shape, strides, writeable = traits
    if not numpy_dtype.isnative:
        raise CallError(
            f"elements of type {numpy_dtype} are stored in the other byte order",
            code="byte-order",
            help="convert with array.astype(array.dtype.newbyteorder('='))",
        )
    dtype = from_numpy(numpy_dtype)
    if dtype is None:
        raise wrong_dtype(numpy_dtype)
    return ArrayView(shape, in_elements(strides, numpy_dtype.itemsize), dtype, CPU, not writeable)


def _reject_masked(_array: Any) -> tuple[int, Traits, object]:
    raise CallError("a masked array's mask would be ignored", code="not-an-array", help="pass array.filled(value)")


def _facts_of_numpy(array: Any) -> Traits:
    return array.dtype, array.shape, array.strides


def _place_of_numpy(array: Any) -> Traits:
    return (array.dtype,)


_read = _read_numpy if _field_is_there() else _read_numpy_slowly
_numpy = Reader(_read, _decode_numpy, _facts_of_numpy, _place_of_numpy)


_LOW = 1 << 40
"""Memory seldom lies below this address, so that few tensors are asked where they begin in it."""


# PyTorch, by attributes only: torch is never imported here.
def _read_torch(tensor: Any) -> tuple[int, Traits, object]:
    try:
        pointer = tensor.data_ptr()
        if pointer < _LOW and pointer == tensor.storage_offset() * tensor.element_size():
            pointer = 0  # an offset into no memory
        return pointer, (tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.is_neg()), None
    except FOREIGN_ERRORS as error:
        raise CallError(
            f"this tensor has no plain memory: {error}",
            code="not-an-array",
            help="pass a dense, materialised tensor",
        ) from error


@cache
def _torch_dtype(dtype: object) -> DType | None:
    name = str(dtype).removeprefix("torch.")
    names = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "bool": "bool"}
    names |= {"float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
    names |= {f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)} | {
        f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)
    }
    return dtype_named(names[name]) if name in names else None


def _decode_torch(traits: Traits) -> ArrayView:
    torch_dtype, shape, strides, device, negated = traits
    dtype = _torch_dtype(torch_dtype)
    if dtype is None:
        raise wrong_dtype(torch_dtype)
    if negated:
        raise CallError("the tensor is a lazily negated view", code="not-an-array", help="pass tensor.resolve_neg()")
    if device.type not in device_kinds():
        raise _no_backend(device)
    where = Device(device.type, device.index or 0)
    return ArrayView(tuple(shape), tuple(strides), dtype, where, readonly=False)


def _no_backend(device: object) -> CallError:
    kinds = " or ".join(device_kinds())
    return CallError(
        f"an array on {device}: no backend runs there",
        code="wrong-device",
        help=f"move it to {kinds}",
    )


# Anything with __dlpack__ (CuPy, JAX, …).
_exporters: dict[int, Callable[[Any], int | None]] = {}
"""What gives the stream to name to an array that exports itself, by DLPack's kind of its memory."""


def _exporter(kind: int) -> Callable[[Any], int | None]:
    for one in platforms():
        if kind in one.dlpack_kinds:
            return _exporters.setdefault(kind, one.export_stream)
    return lambda _array: None


def _read_dlpack(array: Any) -> tuple[int, Traits, object]:
    from tessera.runtime import dlpack  # NumPy's and PyTorch's arrays do without

    try:
        kind, _ = array.__dlpack_device__()
        stream = (_exporters.get(kind) or _exporter(int(kind)))(array)
        try:
            capsule = array.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:  # a producer from before DLPack 1.0 has no max_version
            capsule = array.__dlpack__(stream=stream)
    except FOREIGN_ERRORS as error:
        raise refused("DLPack", error) from error
    imported = dlpack.read_capsule(capsule)
    # JAX exports its immutable arrays as writable.
    immutable = type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
    return imported.pointer, (*imported.layout, immutable), capsule


def _decode_dlpack(traits: Traits) -> ArrayView:
    from tessera.runtime import dlpack

    kind, shape, strides, device_kind, index, readonly, immutable = traits
    dtype = dlpack.dtype_of(kind)
    if dtype is None:
        raise wrong_dtype(f"DLPack code {kind[0]}, {kind[1]} bits, {kind[2]} lanes")
    device = dlpack.device_of(device_kind, index)
    if device is None:
        raise _no_backend(f"DLPack device {device_kind}:{index}")
    return ArrayView(shape, row_major(shape) if strides is None else strides, dtype, device, readonly or immutable)


def _facts_of_torch(tensor: Any) -> Traits:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.data_ptr() & 15


def _place_of_torch(tensor: Any) -> Traits:
    return tensor.dtype, tensor.stride(), tensor.data_ptr() & 15


_torch = Reader(_read_torch, _decode_torch, _facts_of_torch, _place_of_torch)
_dlpack_reader = Reader(_read_dlpack, _decode_dlpack)
_masked = Reader(_reject_masked, _decode_numpy)

READERS: dict[type[Any], Reader] = {np.ndarray: _numpy}
"""The reader of each type seen so far; `reader_of` fills it."""


def _find_reader(kind: type[Any]) -> Reader | None:
    masked = sys.modules.get("numpy.ma")
    if masked is not None and issubclass(kind, masked.MaskedArray):
        return _masked
    if issubclass(kind, np.ndarray):
        return _numpy
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _torch
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return _dlpack_reader
    named = (one for one in platforms() if one.array_protocol and hasattr(kind, one.array_protocol))
    return next((one.protocol_reader() for one in named), None)


def reader_of(kind: type[Any]) -> Reader | None:
    """Return how arrays of a type are read, or None when they are not arrays."""
    reader = READERS.get(kind) or _find_reader(kind)
    if reader is not None:
        READERS[kind] = reader
    return reader


def view_of(array: Any) -> tuple[int, ArrayView, object]:
    """Return address, view and keep-alive object of an array.

    Raises:
        CallError: `not-an-array`, `wrong-dtype`, `wrong-device`, `byte-order` or `misaligned`.
    """
    kind = cast("type[Any]", type(array))
    reader = reader_of(kind)
    if reader is None:
        raise CallError(
            f"{kind.__name__} is not an array",
            code="not-an-array",
            help=array_help(),
        )
    return read_view(reader, array)


@lru_cache(maxsize=4096)
def _decoded(decode: Callable[[Traits], ArrayView], traits: Traits) -> ArrayView:
    """Return what traits mean; equal ones mean the same."""
    return decode(traits)


def read_view(reader: Reader, array: Any) -> tuple[int, ArrayView, object]:
    """Return address, view and keep-alive object of an array that has this reader; raises as `view_of`."""
    pointer, traits, keep = reader.read(array)
    view = _decoded(reader.decode, traits)
    if pointer == 0 and 0 not in view.shape:
        raise CallError(
            f"an array of shape {tuple(view.shape)} has no memory",
            code="not-an-array",
            help="pass an array that holds its elements: not one of a tracer, nor one that was freed",
        )
    return pointer, view, keep
