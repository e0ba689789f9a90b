"""Tensors in global memory: bounded boxes and index tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import Operation

from tessera.interp.between import reads, writes
from tessera.interp.machine import Machine, handles
from tessera.interp.values import Array, Tensor, dtype_at
from tessera.ir.tile.atomics import AtomicOp
from tessera.ir.tile.memory import GatherOp, LoadOp, ScatterOp, StoreOp, shape_at
from tessera.ir.tile.roles import BulkCopyOp, BulkStoreOp
from tessera.ir.tile.shared import CpAsyncOp

Box = tuple[slice, ...]


def _overlap(offsets: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> tuple[Box, Box]:
    """Return the part of a box that lies inside a tensor, as slices of the tensor and of the box."""
    inside: list[slice] = []
    within: list[slice] = []
    for offset, size, limit in zip(offsets, sizes, shape, strict=True):
        first = min(max(offset, 0), limit)
        last = max(min(offset + size, limit), first)
        inside.append(slice(first, last))
        within.append(slice(first - offset, last - offset) if last > first else slice(0, 0))
    return tuple(inside), tuple(within)


def box_of(
    op: LoadOp | StoreOp | CpAsyncOp | BulkCopyOp | BulkStoreOp, machine: Machine
) -> tuple[Tensor, tuple[int, ...], Box, Box]:
    """Return a slice's tensor, its offsets, and the part of the box inside the tensor, seen from either."""
    tensor: Tensor = machine.get(op.tensor)
    offsets = tuple(int(offset) for offset in machine.all(op.offsets))
    return tensor, offsets, *_overlap(offsets, op.size_list, tensor.array.shape)


def read_box(op: LoadOp | CpAsyncOp | BulkCopyOp, machine: Machine, fill: Any, mask: Array | None = None) -> Array:
    """Return the tile that a box of a tensor holds, `fill` outside the tensor and where `mask` is false.

    Raises:
        DeviceError: `uninitialized-read`.
    """
    tensor, offsets, inside, within = box_of(op, machine)
    result = np.full(op.size_list, fill)
    result[within] = tensor.array[inside]
    wanted = None if mask is None else np.asarray(mask).reshape(op.size_list)
    reads(tensor, inside, op, machine, True if wanted is None else wanted[within])
    if tensor.defined is not None and machine.checks:
        missing = np.zeros(op.size_list, np.bool_)
        missing[within] = ~tensor.defined[inside]
        if wanted is not None:
            missing &= wanted
        if missing.any():
            at = np.argwhere(missing)[0]
            raise uninitialized(op, machine, tensor, [o + i for o, i in zip(offsets, at, strict=True)])
    if wanted is not None:
        result = np.where(wanted, result, fill)
    return result.reshape(op.tile_shape)


def uninitialized(op: Operation, machine: Machine, tensor: Tensor, index: Sequence[Any]) -> Exception:
    """Return the error of an op that reads an element that nothing was written to."""
    place = ", ".join(str(int(i)) for i in index)
    return machine.fault(op, "uninitialized-read", f"reads {tensor.name}[{place}], which nothing was written to")


def _fill(op: LoadOp | GatherOp, machine: Machine) -> Any:
    fill = machine.maybe(op.fill)
    return np.zeros((), dtype_at(op.result.type).numpy())[()] if fill is None else fill


@handles(LoadOp)
def _load(op: LoadOp, machine: Machine) -> Any:
    return read_box(op, machine, _fill(op, machine), machine.maybe(op.mask))[()]


@handles(StoreOp)
def _store(op: StoreOp, machine: Machine) -> None:
    tensor, _, inside, within = box_of(op, machine)
    value = np.asarray(machine.get(op.value)).reshape(op.size_list)[within]
    mask = machine.maybe(op.mask)
    where = True if mask is None else np.asarray(mask).reshape(op.size_list)[within]
    writes(tensor, inside, op, machine, where)
    memory = (*inside, ...)  # without dimensions, `array[()]` is a number
    np.copyto(tensor.array[memory], value, where=where)
    if tensor.defined is not None:
        np.copyto(tensor.defined[memory], True, where=where)


def element_indices(
    op: GatherOp | ScatterOp | AtomicOp, machine: Machine, shape: tuple[int, ...]
) -> tuple[Tensor, tuple[Array, ...], Array]:
    """Return the tensor, one index array per dimension (0 where inactive), and which elements are active.

    An index outside the tensor is inactive. A tensor without dimensions comes as one of a single element.
    """
    tensor: Tensor = machine.get(op.tensor)
    mask = machine.maybe(op.mask)
    active = np.ones(shape, np.bool_) if mask is None else np.asarray(mask).copy()
    indices = [np.asarray(index).astype(np.int64) for index in machine.all(op.indices)]
    if not indices:
        tensor, indices = tensor.as_vector(), [np.zeros(shape, np.int64)]
    for index, size in zip(indices, tensor.array.shape, strict=True):
        active &= (index >= 0) & (index < size)
    return tensor, tuple(np.where(active, index, 0) for index in indices), active


@handles(GatherOp)
def _gather(op: GatherOp, machine: Machine) -> Any:
    shape = shape_at(op.indices)
    tensor, indices, active = element_indices(op, machine, shape)
    fill = _fill(op, machine)
    if not active.any():
        return np.full(shape, fill)[()]
    if machine.checks and tensor.defined is not None:
        missing = active & ~tensor.defined[indices]
        if missing.any():
            at = tuple(np.argwhere(missing)[0])
            raise uninitialized(op, machine, tensor, [index[at] for index in indices])
    reads(tensor, tuple(index[active] for index in indices), op, machine)
    return np.where(active, tensor.array[indices], fill)[()]


@handles(ScatterOp)
def _scatter(op: ScatterOp, machine: Machine) -> None:
    value = np.asarray(machine.get(op.value))
    tensor, indices, active = element_indices(op, machine, value.shape)
    places, values = tuple(index[active] for index in indices), value[active]
    if machine.checks:
        check_collisions(op, machine, tensor, places, values)
    writes(tensor, places, op, machine)
    tensor.array[places] = values
    if tensor.defined is not None:
        tensor.defined[places] = True


def flat_places(tensor: Tensor, places: tuple[Array, ...]) -> Array:
    """Return the number of each element in row-major order."""
    flat = np.zeros(len(places[0]), np.int64)
    for place, size in zip(places, tensor.array.shape, strict=True):
        flat = flat * size + place
    return flat


def check_collisions(op: Operation, machine: Machine, tensor: Tensor, places: tuple[Array, ...], values: Array) -> None:
    """Check that elements that are stored to one place have one value.

    Raises:
        DeviceError: `race`, naming the place.
    """
    flat = flat_places(tensor, places)
    order = np.argsort(flat, kind="stable")
    bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
    same = (flat[order][1:] == flat[order][:-1]) & (bits[order][1:] != bits[order][:-1])
    if same.any():
        first = order[np.argmax(same)]
        at = ", ".join(str(int(place[first])) for place in places)
        message = f"two elements write different values to {tensor.name}[{at}]"
        raise machine.fault(op, "race", message, help="combine them first, or use an atomic")
