"""How the compiled entry reads PyTorch tensors: DLPack 1.3's C exchange functions, found once.

The functions give a tensor's memory, sizes and strides without a reference or a lock, and the current stream. They
do not tell a lazily negated view, so where a tensor holds that bit is looked up on tensors of both kinds.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

from tessera.data import dataclass
from tessera.entry import layout
from tessera.entry.host import word

_MAJOR = 1
_NAME = b"dlpack_exchange_api"
_INNERS = (16, 24)
"""Where PyTorch's tensor objects have pointed at their implementation, by version."""
_IMPLEMENTATION = range(8, 192, 8)
_LEAST_ADDRESS = 1 << 16

_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A library's exchange functions.

    Args:
        read: address of `dltensor_from_py_object_no_sync`.
        stream: address of `current_work_stream`.
        inner: where an object points at its implementation.
        mark: where that has a bit for negated views.
        mark_mask: the bit.
    """

    read: int
    stream: int
    inner: int
    mark: int
    mark_mask: int


@dataclass(frozen=True, slots=True)
class Description:
    """What the exchange function says of an object, as the words that the entry compares."""

    dtype: int
    device: int


def torch_types() -> tuple[type[Any], ...]:
    """Return PyTorch's types of plain tensors, none where it is not imported."""
    torch: Any = sys.modules.get("torch")
    return () if torch is None else (torch.Tensor, torch.nn.Parameter)


@cache
def torch_exchange() -> Exchange | None:
    """Return how PyTorch's tensors are read, None where this PyTorch does not offer it."""
    torch: Any = sys.modules["torch"]
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None or not hasattr(torch, "_neg_view"):
        return None
    table = _pointer_of(capsule, _NAME)
    if ctypes.c_uint32.from_address(table).value != _MAJOR:
        return None
    read, stream = (word(table + layout.EXCHANGE[name]) for name in ("tensor", "stream"))
    found = _negation(torch)
    return None if read == 0 or found is None else Exchange(read, stream, *found)


def _negation(torch: Any) -> tuple[int, int, int] | None:
    """Return where tensors have the bit of lazily negated views, None when that is not plain to see."""
    plain = [torch.zeros(3), torch.zeros((2, 5), dtype=torch.bfloat16), torch.zeros(()), torch.ones(4)[1:]]
    plain[0].requires_grad_()
    negated = [torch._neg_view(one) for one in plain]
    pairs = list(zip(plain, negated, strict=True))
    for inner in _INNERS:
        if all(_points_at_memory(one, inner) for pair in pairs for one in pair):
            for offset in _IMPLEMENTATION:
                differing = {_bits(one, inner, offset) ^ _bits(other, inner, offset) for one, other in pairs}
                mask = differing.pop()
                if (
                    not differing
                    and mask.bit_count() == 1
                    and not any(_bits(one, inner, offset) & mask for one in plain)
                ):
                    return inner, offset, mask
    return None


def _points_at_memory(tensor: Any, inner: int) -> bool:
    address = word(id(tensor) + inner)
    return address > _LEAST_ADDRESS and address % layout.WORD == 0


def _bits(tensor: Any, inner: int, offset: int) -> int:
    return word(word(id(tensor) + inner) + offset) & 0xFFFF_FFFF_FFFF_FFFF


def describe(exchange: Exchange, tensor: Any) -> Description | None:
    """Return what the exchange function says of a tensor, None when it refuses."""
    read = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(exchange.read)
    memory = (ctypes.c_char * layout.TENSOR_BYTES)()
    try:
        read(tensor, ctypes.addressof(memory))
    except (RuntimeError, BufferError, NotImplementedError, TypeError, ValueError):
        return None
    return description_at(ctypes.addressof(memory))


def description_at(address: int) -> Description:
    """Return what a `DLTensor` says."""
    dtype = ctypes.c_uint32.from_address(address + layout.TENSOR["dtype"]).value
    return Description(dtype, word(address + layout.TENSOR["device"]))
