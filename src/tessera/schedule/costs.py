"""What ops of a tile cost on each engine of a GPU's multiprocessor: the model that schedules are chosen by.

Cycles are those of one warpgroup that has the multiprocessor to itself: work of an engine divided by its rate.
"""

from __future__ import annotations

from enum import StrEnum
from math import prod

from xdsl.ir import Attribute, Operation

from tessera.ir.tile.elementwise import CastOp, ElementwiseOp, RoundTf32Op
from tessera.ir.tile.mma import MmaOp
from tessera.ir.tile.reduce import REDUCING
from tessera.ir.tile.roles import BarrierArriveOp, BarrierWaitOp
from tessera.ir.tile.types import TileType, element_of, shape_of
from tessera.ir.types import dtype_of
from tessera.numerics.functions import record_of
from tessera.schedule.products import GROUP_WARPS
from tessera.target.machines import Rates, relative_rate


class Engine(StrEnum):
    """What executes an op."""

    TENSOR = "tensor core"
    VECTOR = "vector"
    SPECIAL = "special function"
    BARRIER = "barrier"


def engine_of(op: Operation) -> Engine:
    """Return the engine that an op keeps busy."""
    if isinstance(op, MmaOp):
        return Engine.TENSOR
    if isinstance(op, BarrierWaitOp | BarrierArriveOp):
        return Engine.BARRIER
    if isinstance(op, ElementwiseOp) and record_of(op.fn.data).special:
        return Engine.SPECIAL
    return Engine.VECTOR


def cycles_of(op: Operation, warps: int, rates: Rates) -> float:
    """Return how long an op keeps its engine busy for one of the warpgroups that `warps` warps make."""
    groups = warps / GROUP_WARPS
    if isinstance(op, MmaOp):
        m, k = shape_of(op.a.type)
        n = shape_of(op.acc.type)[1]
        return m * n * k / groups / (rates.products * relative_rate(dtype_of(element_of(op.a.type)).bytes))
    if engine_of(op) == Engine.BARRIER:
        return rates.barrier
    tiles = [o.type for o in op.operands] if isinstance(op, REDUCING) else [r.type for r in op.results]
    rate = rates.conversions if isinstance(op, CastOp | RoundTf32Op) else rates.results
    if engine_of(op) == Engine.SPECIAL:
        rate = rates.special
    return sum(prod(t.shape) for t in tiles if isinstance(t, TileType)) / groups / rate


def registers_of(type_: Attribute, warps: int) -> float:
    """Return how many registers of a thread a tile takes; a row's or column's value is held by four lanes."""
    if not isinstance(type_, TileType):
        return 0
    copies = 4 if len(type_.shape) == 1 or 1 in type_.shape else 1
    return prod(type_.shape) * copies * dtype_of(element_of(type_)).bytes / 4 / (32 * warps)
