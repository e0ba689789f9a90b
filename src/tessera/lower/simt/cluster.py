"""SIMT lowering of a program's place in its cluster."""

from __future__ import annotations

from tessera.ir.target import cluster as target
from tessera.ir.tile.cluster import ClusterRankOp
from tessera.lower.simt.context import SimtContext
from tessera.lower.simt.rules import lowers


@lowers(ClusterRankOp)
def _rank(context: SimtContext, op: ClusterRankOp) -> None:
    context.define(op.result, context.value(target.ClusterRankOp()))
