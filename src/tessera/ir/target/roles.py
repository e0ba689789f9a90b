"""Warp roles, phase barriers (mbarrier) and bulk copies (TMA) of TIR-T.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier",
"Data Movement and Conversion Instructions: cp.async.bulk.tensor".
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IntAttr, i1
from xdsl.ir import Block, Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import NoTerminator
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Count, Int, Ints
from tessera.ir.target.types import BufferType, PointerType
from tessera.ir.types import index


@op_definition
class MbarrierInitOp(TesseraOp):
    """Makes each 64-bit element of a shared buffer a barrier that `arrivals` threads complete.

    Other threads and the copy engine may use it after the next barrier of the block.
    """

    name = "tessera_target.mbarrier_init"
    barriers = operand_def(BufferType)
    arrivals = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$barriers `arrivals` custom<Int>($arrivals) attr-dict `:` type($barriers)"
    custom_directives = (Int,)

    def __init__(self, barriers: SSAValue, arrivals: int):
        super().__init__(operands=[barriers], properties={"arrivals": IntAttr(arrivals)})

    def verify_(self) -> None:
        """Check that the buffer can hold barriers and that a phase has arrivals."""
        type_ = self.barriers.type
        assert isinstance(type_, BufferType)
        if type_.space.data != "shared" or type_.dtype.bytes != 8 or len(type_.shape) != 1:
            raise VerifyException("barriers are a row of 64-bit elements in shared memory")
        if self.arrivals.data < 1:
            raise VerifyException("a phase of a barrier has at least one arrival")


@op_definition
class MbarrierExpectOp(TesseraOp):
    """One thread arrives at barrier `at` and announces `bytes` bytes of copies."""

    name = "tessera_target.mbarrier_expect"
    barriers = operand_def(BufferType)
    at = operand_def(index)
    bytes = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$barriers `[` $at `]` `bytes` custom<Int>($bytes) attr-dict `:` type($barriers)"
    custom_directives = (Int,)

    def __init__(self, barriers: SSAValue, at: SSAValue, bytes: int):
        super().__init__(operands=[barriers, at], properties={"bytes": IntAttr(bytes)})

    def verify_(self) -> None:
        """Check that the number of bytes is not negative."""
        if self.bytes.data < 0:
            raise VerifyException("the number of expected bytes is not negative")


@op_definition
class MbarrierArriveOp(TesseraOp):
    """One thread of each warp of the role arrives at barrier `at`; none where `when` is given and false."""

    name = "tessera_target.mbarrier_arrive"
    barriers = operand_def(BufferType)
    at = operand_def(index)
    when = opt_operand_def(i1)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$barriers `[` $at `]` (`when` $when^)? attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, at: SSAValue, when: SSAValue | None = None):
        super().__init__(operands=[barriers, at, when])


@op_definition
class MbarrierWaitOp(TesseraOp):
    """Every thread waits until the phase of parity `parity` of barrier `at` has ended."""

    name = "tessera_target.mbarrier_wait"
    barriers = operand_def(BufferType)
    at = operand_def(index)
    parity = operand_def(index)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$barriers `[` $at `]` `parity` $parity attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, at: SSAValue, parity: SSAValue):
        super().__init__(operands=[barriers, at, parity])


@op_definition
class PrefetchMapOp(TesseraOp):
    """One thread fetches a tensor map ahead of the copies that use it."""

    name = "tessera_target.prefetch_map"
    map = operand_def(PointerType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$map attr-dict `:` type($map)"

    def __init__(self, map: SSAValue):
        super().__init__(operands=[map])


@op_definition
class BulkCopyOp(TesseraOp):
    """One thread starts copying a box to a buffer through a tensor map; the bytes count towards barrier `at`.

    `coordinates` are offsets in the tensor, the contiguous dimension first, as the map has them; `box` is the box
    of one copy in the same order. A buffer wider than the box is filled panel by panel. The thread of each of a
    cluster's `programs` copies a part, of the panels (`part_axis` = 0) or of the rows along another axis of the box,
    to the buffers and barriers of all of them. Where `once` is true, the box leaves the caches before other data.
    With an `end`, a copy is left out that would start there or later along `end_axis`: only its bytes count.
    """

    name = "tessera_target.bulk_copy"
    buffer = operand_def(BufferType)
    map = operand_def(PointerType)
    barriers = operand_def(BufferType)
    at = operand_def(index)
    coordinates = var_operand_def(index)
    once = opt_operand_def(i1)
    end = opt_operand_def(index)
    box = prop_def(ArrayAttr[IntAttr])
    programs = prop_def(IntAttr)
    part_axis = prop_def(IntAttr)
    end_axis = opt_prop_def(IntAttr)
    traits = traits_def(*effect(Effect.MEMORY))
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$map `[` $coordinates `]` `box` custom<Ints>($box) `programs` custom<Int>($programs) "
        "`axis` custom<Int>($part_axis) (`once` $once^)? (`end` $end^ `along` custom<Int>($end_axis))? "
        "`into` $buffer `,` $barriers `[` $at `]` attr-dict "
        "`:` type($map) `,` type($buffer) `,` type($barriers)"
    )
    custom_directives = (Int, Ints)

    def __init__(
        self,
        buffer: SSAValue,
        map: SSAValue,
        barriers: SSAValue,
        at: SSAValue,
        coordinates: Sequence[SSAValue],
        box: Sequence[int],
        programs: int = 1,
        part_axis: int = 0,
        once: SSAValue | None = None,
        end: tuple[int, SSAValue] | None = None,
    ):
        """Make the op; `end` is an axis of the box, and where the tensor ends along it."""
        last = [] if end is None else [end[1]]
        super().__init__(
            operands=[buffer, map, barriers, at, list(coordinates), [once] if once is not None else [], last],
            properties={
                "box": ints(box),
                "programs": IntAttr(programs),
                "part_axis": IntAttr(part_axis),
                "end_axis": None if end is None else IntAttr(end[0]),
            },
        )

    @property
    def box_sizes(self) -> tuple[int, ...]:
        """The box of one copy, the contiguous dimension first."""
        return tuple(size.data for size in self.box.data)

    def verify_(self) -> None:
        """Check that there is a coordinate per dimension of the box."""
        if len(self.coordinates) != len(self.box_sizes):
            raise VerifyException("a bulk copy has one coordinate per dimension of its box")
        if not 1 <= self.programs.data <= 16 or not 0 <= self.part_axis.data < len(self.box_sizes):
            raise VerifyException("1 to 16 programs share a copy, along an axis of its box")
        if (self.end is None) != (self.end_axis is None) or (self.end is not None and self.programs.data > 1):
            raise VerifyException("an end is along an axis of the box, of a copy that no programs share")


@op_definition
class BulkStoreOp(TesseraOp):
    """Starts copying a buffer to a box of a tensor through a tensor map, as a bulk group of the thread that starts it.

    `coordinates` and `box` are as for a bulk copy. With `rows` = 0 one thread copies the whole buffer. Otherwise each
    warp copies what it wrote: `rows` rows from its number times `rows` on, and again after `rows` times the number of
    warps; `box` is that many rows high, and `row_axis` is the coordinate that counts rows.
    """

    name = "tessera_target.bulk_store"
    buffer = operand_def(BufferType)
    map = operand_def(PointerType)
    coordinates = var_operand_def(index)
    box = prop_def(ArrayAttr[IntAttr])
    rows = prop_def(IntAttr)
    row_axis = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = (
        "$buffer `into` $map `[` $coordinates `]` `box` custom<Ints>($box) `rows` custom<Int>($rows) "
        "`axis` custom<Int>($row_axis) attr-dict `:` type($buffer) `,` type($map)"
    )
    custom_directives = (Int, Ints)

    def __init__(
        self,
        buffer: SSAValue,
        map: SSAValue,
        coordinates: Sequence[SSAValue],
        box: Sequence[int],
        rows: int,
        row_axis: int,
    ):
        super().__init__(
            operands=[buffer, map, list(coordinates)],
            properties={
                "box": ints(box),
                "rows": IntAttr(rows),
                "row_axis": IntAttr(row_axis),
            },
        )

    @property
    def box_sizes(self) -> tuple[int, ...]:
        """The box of one copy, the contiguous dimension first."""
        return tuple(size.data for size in self.box.data)

    def verify_(self) -> None:
        """Check that there is a coordinate per dimension of the box, and that warps copy boxes of their rows."""
        if len(self.coordinates) != len(self.box_sizes):
            raise VerifyException("a bulk store has one coordinate per dimension of its box")
        if self.rows.data and self.box_sizes[self.row_axis.data] != self.rows.data:
            raise VerifyException("the box of a warp's copy is as high as the warp's rows")


@op_definition
class BulkWaitOp(TesseraOp):
    """Every thread waits until the bulk stores it started, all but the newest `pending`, have read shared memory."""

    name = "tessera_target.bulk_wait"
    pending = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "custom<Int>($pending) attr-dict"
    custom_directives = (Int,)

    def __init__(self, pending: int):
        super().__init__(properties={"pending": IntAttr(pending)})


@op_definition
class WarpBarrierOp(TesseraOp):
    """Waits for all lanes of the warp and orders their accesses to shared memory."""

    name = "tessera_target.warp_barrier"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class ProxyFenceOp(TesseraOp):
    """Makes this thread's writes to shared memory visible to copies and matrix instructions that start later."""

    name = "tessera_target.proxy_fence"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class RolesOp(TesseraOp):
    """The last warpgroup runs `producer` (in one thread), the warps before it run `consumer`.

    `registers` are what a thread of each role gets (`setmaxnreg`), producer first. Several `groups` of as many warps as
    hold fragments run `consumer` side by side; barriers and single threads within it are those of a group.
    """

    name = "tessera_target.roles"
    registers = prop_def(ArrayAttr[IntAttr])
    groups = prop_def(IntAttr)
    producer = region_def("single_block")
    consumer = region_def("single_block")
    traits = traits_def(NoTerminator())
    assembly_format = (
        "`registers` custom<Ints>($registers) (`groups` custom<Count>($groups)^)? "
        "`producer` $producer `consumer` $consumer attr-dict"
    )
    custom_directives = (Count, Ints)

    def __init__(self, producer: Block, consumer: Block, registers: tuple[int, int], groups: int = 1):
        super().__init__(
            properties={
                "registers": ints(registers),
                "groups": IntAttr(groups),
            },
            regions=[Region(producer), Region(consumer)],
        )

    def verify_(self) -> None:
        """Check that there are consumers."""
        if self.groups.data < 1:
            raise VerifyException("there is at least one group of consumers")


@op_definition
class RoleGroupOp(TesseraOp):
    """The number of the consumer group that runs this op, counted from 0."""

    name = "tessera_target.role_group"
    result = result_def(index)
    traits = traits_def(*PURE)
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__(result_types=[index])
