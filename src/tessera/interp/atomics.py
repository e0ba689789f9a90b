"""Atomics and fences. One program runs at a time, so that every order holds; what none orders is a race."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tessera.interp.between import atomically, fenced
from tessera.interp.elementwise import apply
from tessera.interp.machine import Machine, handles
from tessera.interp.memory import element_indices, flat_places, uninitialized
from tessera.interp.shared import check_atomic, shared_elements
from tessera.interp.values import Array, Tensor, dtype_at
from tessera.ir.tile.atomics import AtomicOp, FenceOp, SharedAtomicOp
from tessera.ir.tile.memory import shape_at
from tessera.numerics.dtypes import DType


def _old_or(fn: str) -> Callable[[Any, Any, DType], Any]:
    return lambda old, value, dtype: apply(fn, (old, value), dtype)


_UPDATES: dict[str, Callable[[Any, Any, DType], Any]] = {
    "add": _old_or("add"),
    "max": _old_or("maximum"),
    "min": _old_or("minimum"),
    "and": _old_or("and"),
    "or": _old_or("or"),
    "xor": _old_or("xor"),
    "exchange": lambda old, value, dtype: value,
    "store": lambda old, value, dtype: value,
}


@handles(AtomicOp)
def _atomic(op: AtomicOp, machine: Machine) -> Any:
    shape = shape_at(op.indices)
    tensor, indices, active = element_indices(op, machine, shape)
    places = tuple(index[active] for index in indices)
    if op.fn.data != "store" and machine.checks and tensor.defined is not None and not tensor.defined[places].all():
        at = int(np.argmin(tensor.defined[places]))
        raise uninitialized(op, machine, tensor, [place[at] for place in places])
    atomically(tensor, places, op, machine)
    values, expected = (None if v is None else np.asarray(machine.get(v))[active] for v in (op.value, op.compare))
    old = np.zeros(shape, tensor.array.dtype)
    if values is None:
        old[active] = tensor.array[places]
    else:
        old[active] = _update(op.fn.data, tensor, places, values, expected, dtype_at(op.tensor.type))
    if op.result is None:
        if tensor.defined is not None:
            tensor.defined[places] = True
        return None
    return old[()]


@handles(SharedAtomicOp)
def _shared_atomic(op: SharedAtomicOp, machine: Machine) -> Any:
    buffer, places, active = shared_elements(op, machine)
    check_atomic(buffer, places, op, machine)
    values, expected = (None if v is None else np.asarray(machine.get(v))[active] for v in (op.value, op.compare))
    old = np.zeros(active.shape, buffer.data.dtype)
    if values is None:
        old[active] = buffer.data[places]
    else:
        elements = Tensor("a shared buffer", buffer.data)
        old[active] = _update(op.fn.data, elements, places, values, expected, dtype_at(op.buffer.type))
    return None if op.result is None else old[()]


def _update(
    fn: str, tensor: Tensor, places: tuple[Array, ...], values: Array, expected: Array | None, dtype: DType
) -> Array:
    """Update elements one after the other, all at once where no two are the same; return the old values."""
    flat = flat_places(tensor, places)
    steps: list[Any] = [slice(None)] if len(np.unique(flat)) == len(flat) else list(range(len(flat)))
    old = np.empty(len(flat), tensor.array.dtype)
    for step in steps:
        at = tuple(place[step] for place in places)
        old[step] = tensor.array[at]
        if expected is not None:
            bits = f"u{old.dtype.itemsize}"
            equal = old[step].view(bits) == expected[step].view(bits)
            tensor.array[at] = np.where(equal, values[step], old[step])
        else:
            tensor.array[at] = _UPDATES[fn](old[step], values[step], dtype)
    return old


@handles(FenceOp)
def _fence(op: FenceOp, machine: Machine) -> None:
    fenced(op, machine)
