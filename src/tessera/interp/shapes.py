"""Shape changes of tiles, and elements that change places."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.interp.machine import Machine, handles
from tessera.ir.tile.exchange import ExchangeOp, SortOp
from tessera.ir.tile.shape import BroadcastOp, ReshapeOp, SubtileOp, TransposeOp


@handles(BroadcastOp)
def _broadcast(op: BroadcastOp, machine: Machine) -> Any:
    return np.broadcast_to(machine.get(op.source), op.result.type.shape)


@handles(ReshapeOp)
def _reshape(op: ReshapeOp, machine: Machine) -> Any:
    return machine.get(op.source).reshape(op.result.type.shape)


@handles(TransposeOp)
def _transpose(op: TransposeOp, machine: Machine) -> Any:
    return machine.get(op.source).transpose(op.permutation)


@handles(SubtileOp)
def _subtile(op: SubtileOp, machine: Machine) -> Any:
    parts = tuple(slice(at, at + size) for at, size in zip(op.places, op.result.type.shape, strict=True))
    return machine.get(op.source)[parts]


@handles(ExchangeOp)
def _exchange(op: ExchangeOp, machine: Machine) -> Any:
    axis = op.axis.data
    size = op.result.type.shape[axis]
    partners = [i ^ op.bits.data if i ^ op.bits.data < size else i for i in range(size)]
    return np.take(machine.get(op.source), partners, axis)


@handles(SortOp)
def _sort(op: SortOp, machine: Machine) -> Any:
    axis, sources = op.axis.data, [machine.get(source) for source in op.sources]
    keys = [~source if op.descending is not None else source for source in sources]  # ~ turns the order of integers
    order = np.lexsort(keys[::-1], axis=axis)
    found: tuple[Any, ...] = tuple(np.take_along_axis(source, order, axis) for source in sources)
    return found[0] if len(sources) == 1 else found
