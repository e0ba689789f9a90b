"""Programs of a cluster: they run at the same time and reach each other's shared memory."""

from __future__ import annotations

from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.tile.types import SharedType, element_of, shape_of
from tessera.ir.types import index

MOST_PROGRAMS = 8
"""Of a cluster: every GPU with clusters can run so many (CUDA C++ Programming Guide, "Thread Block Clusters")."""


@op_definition
class ClusterRankOp(TesseraOp):
    """The number of the running program in its cluster, from 0; a grid's `tessera_schedule.cluster` has the size."""

    name = "tessera_tile.cluster_rank"
    result = result_def(index)
    traits = traits_def(*PURE)
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self) -> None:
        super().__init__(result_types=[index])


@op_definition
class ClusterArriveOp(TesseraOp):
    """Tells the other programs of the cluster that this one has come so far, and shows them what it did before."""

    name = "tessera_tile.cluster_arrive"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class ClusterWaitOp(TesseraOp):
    """Waits until all programs of the cluster have arrived as often as this one, and sees what they did before."""

    name = "tessera_tile.cluster_wait"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class ClusterPutOp(TesseraOp):
    """Writes a scalar to the buffers of all programs of the cluster, at this program's rank.

    All of them have to run, and the buffers are read behind the next wait.
    """

    name = "tessera_tile.cluster_put"
    value = operand_def()
    buffer = operand_def(SharedType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$value `to` $buffer attr-dict `:` type($value) `to` type($buffer)"

    def __init__(self, value: SSAValue, buffer: SSAValue):
        super().__init__(operands=[value, buffer])

    def verify_(self) -> None:
        """Check that the buffer is a row of such scalars, one for each program."""
        shape = shape_of(self.buffer.type)
        if len(shape) != 1 or not 2 <= shape[0] <= MOST_PROGRAMS or element_of(self.buffer.type) != self.value.type:
            raise VerifyException(
                f"a buffer has an element of the scalar's type for each of 2 to {MOST_PROGRAMS} programs"
            )
