"""What the compiled entry needs of this Python: a type whose objects it can be called on, and checked offsets.

`Callable` is the base of kernel objects. Its objects have two words of their own, the function that CPython calls
(`vectorcall`) and the table it reads. While the first is null, CPython calls the `__call__` of the Python class; so
a kernel works before, and without, a compiled entry.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.entry import layout
from tessera.entry.layout import API, ARRAY, KERNEL, KERNEL_BYTES
from tessera.numerics import profiles

_HAVE_VECTORCALL = 1 << 11
_BASE_TYPE = 1 << 10
_DEFAULT = 1 << 18
_TP_CALL, _TP_MEMBERS = 50, 72
_SSIZE_MEMBER, _READ_ONLY = 19, 1
_VECTORCALL_OFFSET, _FLAGS = 56, 168  # of PyTypeObject
_SIZES = {"__basicsize__": 32, "__itemsize__": 40, "__weakrefoffset__": 208, "__dictoffset__": 288}


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("function", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.c_void_p),
    )


class _Member(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def word(address: int) -> int:
    """Return the 8 bytes at an address, as a signed number."""
    return ctypes.c_int64.from_address(address).value


def put_word(address: int, value: int) -> None:
    """Set the 8 bytes at an address."""
    ctypes.c_int64.from_address(address).value = value


def _why_not_this_python() -> str:
    """Return why kernel objects of this Python cannot be called directly, empty when they can."""
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} has no vectorcall"
    if "t" in sys.abiflags:
        return "this Python has no GIL"
    if struct.calcsize("P") != layout.WORD or sys.byteorder != "little":
        return "this is not a 64-bit little-endian machine"
    if object.__basicsize__ != KERNEL["call"]:
        return "this Python's objects have an unknown header"
    return "" if _types_are_as_expected() else "this Python's types have an unknown layout"


def _types_are_as_expected() -> bool:
    """Look at types whose fields on both sides of the ones we set can be read from Python too."""

    class Probe:
        __slots__ = ("__weakref__", "other")

    for kind in (Probe, bytes, type):
        at = id(kind)
        if any(word(at + offset) != getattr(kind, name) for name, offset in _SIZES.items()):
            return False
        if word(at + _FLAGS) != kind.__flags__:
            return False
    function: type[Any] = type(_why_not_this_python)  # known to be called by vectorcall, through a field inside it
    return 0 < word(id(function) + _VECTORCALL_OFFSET) < function.__basicsize__


_reason = _why_not_this_python()


def _new_base() -> type[Any]:
    """Make the base type of kernel objects: `object` with the words of `layout.KERNEL`."""
    members = (_Member * 2)(
        _Member(b"__vectorcalloffset__", _SSIZE_MEMBER, KERNEL["call"], _READ_ONLY, None), _Member()
    )
    call = ctypes.cast(ctypes.pythonapi.PyVectorcall_Call, ctypes.c_void_p).value
    slots = (_Slot * 3)(_Slot(_TP_MEMBERS, ctypes.addressof(members)), _Slot(_TP_CALL, call), _Slot(0, None))
    flags = _DEFAULT | _BASE_TYPE | _HAVE_VECTORCALL
    spec = _Spec(b"tessera.entry.Callable", KERNEL_BYTES, 0, flags, ctypes.addressof(slots))
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(("PyType_FromSpec", ctypes.pythonapi))
    _kept.append((members, slots, spec))
    return make(ctypes.addressof(spec))


_kept: list[Any] = []

if TYPE_CHECKING:

    class Callable:
        """The base of kernel objects."""
else:
    Callable = object if _reason else _new_base()


def call_directly(kind: type[Any]) -> type[Any]:
    """Let CPython call objects of a subclass of `Callable` through their own function, where they have one.

    A class with a `__call__` of its own loses this; with the flag back, that `__call__` serves objects whose
    function is null.
    """
    if not _reason:
        put_word(id(kind) + _FLAGS, kind.__flags__ | _HAVE_VECTORCALL)
        put_word(id(kind) + _VECTORCALL_OFFSET, KERNEL["call"])
    return kind


@cache
def why_not() -> str:
    """Return why there can be no compiled entry here, empty when there can."""
    if _reason:
        return _reason
    if sys.platform not in ("linux", "freebsd"):
        return f"no loader for {sys.platform}"
    if platform.machine().lower() not in ("x86_64", "amd64", "aarch64", "arm64"):
        return f"no code generator for {platform.machine()}"
    if not _objects_are_as_expected():
        return "this Python's objects have an unknown layout"
    return "" if _arrays_are_as_expected() else f"NumPy {np.__version__} has an unknown array layout"


def _objects_are_as_expected() -> bool:
    number, pair, text = 0.12345, (object(), object()), b"layout"
    items = [word(id(pair) + layout.TUPLE_ITEMS + layout.WORD * place) for place in range(2)]
    return (
        word(id(number) + layout.OBJECT_TYPE) == id(float)
        and _value_of(number) == number
        and word(id(pair) + layout.TUPLE_SIZE) == 2
        and items == [id(one) for one in pair]
        and ctypes.string_at(id(text) + layout.BYTES_DATA, len(text)) == text
        and _value_of(np.float64(number)) == number
    )


def _value_of(number: float) -> float:
    return struct.unpack("<d", ctypes.string_at(id(number) + layout.FLOAT_VALUE, 8))[0]


def _arrays_are_as_expected() -> bool:
    whole = np.zeros((5, 7, 3), np.float32)
    frozen = whole[1:, ::2].view()
    frozen.flags.writeable = False
    return all(map(_array_is_as_expected, (whole, frozen, np.zeros(4, np.int64)[::-1], np.zeros(3, np.uint8))))


def _array_is_as_expected(array: Any) -> bool:
    at = id(array)

    def numbers(field: str) -> tuple[int, ...]:
        start = word(at + ARRAY[field])
        return tuple(word(start + layout.WORD * axis) for axis in range(array.ndim))

    flags = ctypes.c_int32.from_address(at + ARRAY["flags"]).value
    return (
        word(at + ARRAY["data"]) == array.ctypes.data
        and ctypes.c_int32.from_address(at + ARRAY["rank"]).value == array.ndim
        and numbers("sizes") == array.shape
        and numbers("strides") == array.strides
        and word(at + ARRAY["dtype"]) == id(array.dtype)
        and bool(flags & layout.WRITEABLE) == array.flags.writeable
    )


# The generation: what a record was made for can change for the whole process.
_generation = ctypes.c_int64(1)


def generation() -> int:
    """Return the number of the process-wide choices in force."""
    return _generation.value


def new_generation() -> None:
    """Make every record void: a choice that they rest on has changed."""
    _generation.value += 1


_FUNCTIONS = {
    "context_get": "PyContextVar_Get",
    "call": "PyObject_Vectorcall",
    "clear": "PyErr_Clear",
    "occurred": "PyErr_Occurred",
    "incref": "Py_IncRef",
    "decref": "Py_DecRef",
    "save": "PyEval_SaveThread",
    "restore": "PyEval_RestoreThread",
    "long_value": "PyLong_AsLongLongAndOverflow",
    "long_double": "PyLong_AsDouble",
    "pack_half": "PyFloat_Pack2",
    "compare": "PyObject_RichCompareBool",
    "from_long": "PyLong_FromLongLong",
    "tuple_new": "PyTuple_New",
    "tuple_set": "PyTuple_SetItem",
}


def function_address(library: Any, name: str) -> int:
    """Return the address of a function of a loaded library."""
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


@cache
def api() -> int:
    """Return the address of the process's `layout.API` words; only where `why_not()` is empty."""
    words = (ctypes.c_int64 * len(API))()
    values = {field: function_address(ctypes.pythonapi, name) for field, name in _FUNCTIONS.items()}
    objects: dict[str, object] = {
        "array_type": np.ndarray,
        "float_type": float,
        "float64_type": np.float64,
        "long_type": int,
        "bool_type": bool,
        "true": True,
        "false": False,
        "none": None,
        "profile": profiles.current,
    }
    values |= {field: id(value) for field, value in objects.items()}
    values["clock"] = function_address(ctypes.CDLL(None), "clock_gettime")
    values["clock_kind"] = time.CLOCK_MONOTONIC
    values["generation"] = ctypes.addressof(_generation)
    for field, offset in API.items():
        words[offset // layout.WORD] = values[field]
    _kept.append((words, objects))
    return ctypes.addressof(words)
