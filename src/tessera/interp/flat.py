"""Tensors without gaps as one row."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.between import reads, writes
from tessera.interp.machine import Machine, handles
from tessera.interp.memory import uninitialized
from tessera.interp.values import Array, Tensor, dtype_at
from tessera.ir.tile.flat import LoadFlatOp, StoreFlatOp


def _places(tensor: Tensor, offset: int, size: int) -> tuple[Array, ...]:
    """Return the indices of those elements that exist, one array per dimension."""
    last = min(offset + size, tensor.array.size)
    return np.unravel_index(np.arange(min(offset, last), last), tensor.array.shape)


@handles(LoadFlatOp)
def _load(op: LoadFlatOp, machine: Machine) -> Any:
    tensor: Tensor = machine.get(op.tensor)
    places = _places(tensor, int(machine.get(op.offset)), op.size.data)
    result = np.zeros(op.size.data, dtype_at(op.result.type).numpy())
    reads(tensor, places, op, machine)
    if machine.checks and tensor.defined is not None and not tensor.defined[places].all():
        at = int(np.argmin(tensor.defined[places]))
        raise uninitialized(op, machine, tensor, [index[at] for index in places])
    result[: len(places[0])] = tensor.array[places]
    return result


@handles(StoreFlatOp)
def _store(op: StoreFlatOp, machine: Machine) -> None:
    tensor: Tensor = machine.get(op.tensor)
    value = np.asarray(machine.get(op.value))
    places = _places(tensor, int(machine.get(op.offset)), len(value))
    writes(tensor, places, op, machine)
    tensor.array[places] = value[: len(places[0])]
    if tensor.defined is not None:
        tensor.defined[places] = True
