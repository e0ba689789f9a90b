"""Access to tensors by where elements lie in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.between import reads, writes
from tessera.interp.machine import Machine, handles
from tessera.interp.memory import uninitialized
from tessera.interp.values import Array, Tensor, dtype_at
from tessera.ir.tile.flat import GatherAtOp, LoadFlatOp, ScatterAtOp, StoreFlatOp


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


def _at(op: GatherAtOp | ScatterAtOp, machine: Machine) -> tuple[Tensor, tuple[Array, ...], Array]:
    """Return the tensor, the indices of the elements that there are, and which these are."""
    tensor: Tensor = machine.get(op.tensor)
    rest, mask = np.asarray(machine.get(op.distances)).astype(np.int64), machine.maybe(op.mask)
    active = np.ones(rest.shape, np.bool_) if mask is None else np.asarray(mask)
    strides = [stride // tensor.array.itemsize for stride in tensor.array.strides]
    rest, indices = rest[active], [np.zeros(0, np.int64)] * len(strides)
    # Of dimensions of one element, whose strides say nothing, the index is 0.
    long = [axis for axis, size in enumerate(tensor.array.shape) if size > 1]
    for axis in sorted(long, key=lambda axis: -strides[axis]):
        indices[axis], rest = np.divmod(rest, strides[axis])
    return tensor, tuple(each if axis in long else 0 * rest for axis, each in enumerate(indices)), active


@handles(GatherAtOp)
def _gather(op: GatherAtOp, machine: Machine) -> Any:
    tensor, places, active = _at(op, machine)
    reads(tensor, places, op, machine)
    if machine.checks and tensor.defined is not None and not tensor.defined[places].all():
        at = int(np.argmin(tensor.defined[places]))
        raise uninitialized(op, machine, tensor, [index[at] for index in places])
    result = np.zeros(active.shape, dtype_at(op.result.type).numpy())
    result[active] = tensor.array[places]
    return result


@handles(ScatterAtOp)
def _scatter(op: ScatterAtOp, machine: Machine) -> None:
    tensor, places, active = _at(op, machine)
    writes(tensor, places, op, machine)
    tensor.array[places] = np.asarray(machine.get(op.value))[active]
    if tensor.defined is not None:
        tensor.defined[places] = True
