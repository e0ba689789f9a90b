"""DLPack in both directions, through ctypes: reading a producer's capsule and making one.

Source: DLPack 1.1, `dlpack.h`.
"""

from __future__ import annotations

import ctypes
from typing import Any

from tessera.data import dataclass
from tessera.errors import CallError
from tessera.numerics.dtypes import DType, dtype_named
from tessera.runtime.device import Device
from tessera.target.registry import families

_READ_ONLY = 1
_CODES = {
    (0, 8): "i8",
    (0, 16): "i16",
    (0, 32): "i32",
    (0, 64): "i64",
    (1, 8): "u8",
    (1, 16): "u16",
    (1, 32): "u32",
    (1, 64): "u64",
    (2, 16): "f16",
    (2, 32): "f32",
    (2, 64): "f64",
    (4, 16): "bf16",
    (6, 8): "bool",
    (10, 8): "fp8_e4m3",
    (12, 8): "fp8_e5m2",
}
_CODE_OF = {name: code for code, name in _CODES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
# The destructor sees an object whose reference count is zero, so it must be handled as a bare address.
_is_valid_raw = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer_of_raw = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class Imported:
    """What a capsule says.

    Args:
        pointer: address of the first element.
        layout: hashable facts, for `decode`.
    """

    pointer: int
    layout: tuple[Any, ...]


def read_capsule(capsule: Any) -> Imported:
    """Read a capsule without consuming it: it stays the owner of the memory.

    Raises:
        CallError: `not-an-array` when the object is not a DLPack capsule.
    """
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        tensor, flags = managed.tensor, int(managed.flags)
    elif _is_valid(capsule, b"dltensor"):
        tensor, flags = _Managed.from_address(_pointer_of(capsule, b"dltensor")).tensor, 0
    else:
        raise CallError(
            "__dlpack__ gave no unused DLPack capsule",
            code="not-an-array",
            help="it gives a new capsule at every call",
        )
    rank = tensor.ndim
    shape = tuple(tensor.shape[:rank]) if rank else ()
    strides = tuple(tensor.strides[:rank]) if rank and tensor.strides else None
    kind = (tensor.code, tensor.bits, tensor.lanes)
    layout = (kind, shape, strides, tensor.device_type, tensor.device_id, bool(flags & _READ_ONLY))
    return Imported((tensor.data or 0) + tensor.byte_offset, layout)


def dtype_of(kind: tuple[int, int, int]) -> DType | None:
    """Return the dtype of a DLPack (code, bits, lanes), or None when there is none."""
    code, bits, lanes = kind
    name = _CODES.get((code, bits)) if lanes == 1 else None
    return None if name is None else dtype_named(name)


def device_of(kind: int, index: int) -> Device | None:
    """Return the device of a DLPack device pair, or None for one that Tessera has no backend for."""
    for one in families():
        if kind in one.dlpack_kinds:
            device = Device(one.device_kind, index)
            return Device(device.kind) if device.is_host else device
    return None


def device_pair(device: Device) -> tuple[int, int]:
    """Return the DLPack device pair of a device."""
    kinds = next(one.dlpack_kinds for one in families() if one.device_kind == device.kind)
    return kinds[0], device.index


_exported: dict[int, tuple[Any, ...]] = {}
"""Keeps the structure and owner of each exported capsule alive, by the structure's address."""


@_Deleter
def _release(address: int | None) -> None:
    _exported.pop(address or 0, None)


def _release_unused(name: bytes) -> Any:
    """Return a capsule destructor that frees the tensor unless a consumer took it and renamed the capsule."""

    @_Destructor
    def destroy(capsule: int | None) -> None:
        if _is_valid_raw(capsule, name):
            _exported.pop(_pointer_of_raw(capsule, name), None)

    return destroy


_DESTROY = {name: _release_unused(name) for name in (b"dltensor", b"dltensor_versioned")}


def type_code(dtype: DType) -> tuple[int, int] | None:
    """Return DLPack's code and bits of a dtype, None when it has none."""
    return _CODE_OF.get(dtype.storage.name)


def make_capsule(
    owner: object,
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: DType,
    device: Device,
    versioned: bool,
) -> Any:
    """Return a DLPack capsule over memory that `owner` keeps alive.

    Raises:
        CallError: `wrong-dtype` when DLPack has no code for the dtype.
    """
    if dtype.storage.name not in _CODE_OF:
        raise CallError(
            f"DLPack has no type code for {dtype.name}",
            code="wrong-dtype",
            help="convert the array, or pass its bytes as u8",
        )
    code, bits = _CODE_OF[dtype.storage.name]
    rank = len(shape)
    extents, steps = (ctypes.c_int64 * rank)(*shape), (ctypes.c_int64 * rank)(*strides)
    kind, index = device_pair(device)
    as_pointer = ctypes.POINTER(ctypes.c_int64)
    tensor = _Tensor(
        pointer,
        kind,
        index,
        rank,
        code,
        bits,
        1,
        ctypes.cast(extents, as_pointer),
        ctypes.cast(steps, as_pointer),
        0,
    )
    deleter = ctypes.cast(_release, ctypes.c_void_p)
    managed = _Versioned(1, 0, None, deleter, 0, tensor) if versioned else _Managed(tensor, None, deleter)
    name = b"dltensor_versioned" if versioned else b"dltensor"
    address = ctypes.addressof(managed)
    _exported[address] = (managed, extents, steps, owner)
    return _new_capsule(address, name, ctypes.cast(_DESTROY[name], ctypes.c_void_p))
