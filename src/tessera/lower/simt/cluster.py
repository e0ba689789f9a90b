"""SIMT lowering of what the programs of a cluster do together."""

from __future__ import annotations

from tessera.ir.target import cluster as target
from tessera.ir.tile.cluster import ClusterArriveOp, ClusterPutOp, ClusterRankOp, ClusterWaitOp
from tessera.ir.tile.types import shape_of
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.rules import lowers


@lowers(ClusterRankOp)
def _rank(context: SimtContext, op: ClusterRankOp) -> None:
    context.define(op.result, context.value(target.ClusterRankOp()))


@lowers(ClusterArriveOp)
def _arrive(context: SimtContext, _op: ClusterArriveOp) -> None:
    context.emit(target.ClusterArriveOp())


@lowers(ClusterWaitOp)
def _wait(context: SimtContext, _op: ClusterWaitOp) -> None:
    context.emit(target.ClusterWaitOp())


@lowers(ClusterPutOp)
def _put(context: SimtContext, op: ClusterPutOp) -> None:
    (programs,) = shape_of(op.buffer.type)
    context.emit(target.ClusterPutOp(context.scalar(op.value), context.scalar(op.buffer), programs))
