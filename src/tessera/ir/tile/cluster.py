"""The place of a program in its cluster: programs that run at the same time and reach each other's shared memory."""

from __future__ import annotations

from xdsl.irdl import result_def, traits_def

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE
from tessera.ir.types import index


@op_definition
class ClusterRankOp(TesseraOp):
    """The number of the running program in its cluster, from 0; a grid's `tessera_schedule.cluster` has the size."""

    name = "tessera_tile.cluster_rank"
    result = result_def(index)
    traits = traits_def(*PURE)
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self) -> None:
        super().__init__(result_types=[index])
