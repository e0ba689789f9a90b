"""Programs that run as a cluster and reach into each other's shared memory (distributed shared memory) of TIR-T.

Source: PTX ISA 9.2, "Cluster-level hierarchy", "barrier.cluster", "mapa", "ld.shared::cluster".
"""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr, i1
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Int
from tessera.ir.target.types import BufferType, FragmentType
from tessera.ir.types import index


@op_definition
class ClusterRankOp(TesseraOp):
    """The number of the running program in its cluster, from 0."""

    name = "tessera_target.cluster_rank"
    result = result_def(index)
    traits = traits_def(*PURE)
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self) -> None:
        super().__init__(result_types=[index])


@op_definition
class ClusterBarrierOp(TesseraOp):
    """Waits for all threads of all programs of the cluster that have not ended, and sees what they wrote before."""

    name = "tessera_target.cluster_barrier"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class ClusterArriveOp(TesseraOp):
    """Tells the other programs of the cluster that this thread has come so far, and shows them what it wrote."""

    name = "tessera_target.cluster_arrive"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class ClusterWaitOp(TesseraOp):
    """Waits until all threads of the cluster that have not ended have arrived, and sees what they wrote before."""

    name = "tessera_target.cluster_wait"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class ClusterPutOp(TesseraOp):
    """Writes a value, the same in all threads, to the buffers that `programs` programs have at the place of `buffer`.

    Its place there is the rank of this program.
    """

    name = "tessera_target.cluster_put"
    value = operand_def()
    buffer = operand_def(BufferType)
    programs = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$value `to` $buffer `programs` custom<Int>($programs) attr-dict `:` type($value) `to` type($buffer)"
    )
    custom_directives = (Int,)

    def __init__(self, value: SSAValue, buffer: SSAValue, programs: int):
        super().__init__(operands=[value, buffer], properties={"programs": IntAttr(programs)})

    def verify_(self) -> None:
        """Check that each program has a place in the buffer, of words."""
        buffer = self.buffer.type
        assert isinstance(buffer, BufferType)
        if buffer.space.data != "shared" or len(buffer.shape) != 1 or buffer.element != self.value.type:
            raise VerifyException("scalars are put into a row of them in shared memory")
        if not 2 <= self.programs.data <= buffer.shape[0]:
            raise VerifyException("each program of a cluster has a place in the buffer")
        if buffer.dtype.bytes not in (4, 8):
            raise VerifyException("scalars of 4 or 8 bytes are put")


@op_definition
class ClusterArriveAllOp(TesseraOp):
    """Each warp of the role arrives once at barrier `at` of every program of a cluster of `programs`.

    None does where `when` is given and false.
    """

    name = "tessera_target.cluster_arrive_all"
    barriers = operand_def(BufferType)
    at = operand_def(index)
    when = opt_operand_def(i1)
    programs = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$barriers `[` $at `]` `programs` custom<Int>($programs) (`when` $when^)? attr-dict `:` type($barriers)"
    )
    custom_directives = (Int,)

    def __init__(self, barriers: SSAValue, at: SSAValue, programs: int, when: SSAValue | None = None):
        super().__init__(operands=[barriers, at, when], properties={"programs": IntAttr(programs)})

    def verify_(self) -> None:
        """Check that a warp has a lane for every program."""
        if not 2 <= self.programs.data <= 32:
            raise VerifyException("a cluster has 2 to 32 programs")


@op_definition
class ClusterLoadOp(TesseraOp):
    """Reads a fragment from the buffer that program `rank` has at the place of `buffer`."""

    name = "tessera_target.cluster_load"
    buffer = operand_def(BufferType)
    rank = operand_def(index)
    result = result_def(FragmentType)
    traits = traits_def(*effect(Effect.STATE, reads_only=True))
    assembly_format = "$buffer `rank` $rank attr-dict `:` type($buffer) `->` type($result)"

    def __init__(self, buffer: SSAValue, rank: SSAValue, result: Attribute):
        super().__init__(operands=[buffer, rank], result_types=[result])

    def verify_(self) -> None:
        """Check that the fragment is as large as the buffer."""
        buffer, result = self.buffer.type, self.result.type
        assert isinstance(buffer, BufferType)
        assert isinstance(result, FragmentType)
        if buffer.shape != result.shape or buffer.element != result.element or buffer.space.data != "shared":
            raise VerifyException("a fragment of the size of the shared buffer is read")
