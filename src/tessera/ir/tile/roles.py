"""Warp roles and the barriers between them: how a producer of copies and consumers of tiles work side by side."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IntAttr, UnitAttr, i1
from xdsl.ir import Attribute, Block, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_attr_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    param_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsTerminator
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Count, Int, Ints
from tessera.ir.tile.memory import Slice
from tessera.ir.tile.structure import GridOp
from tessera.ir.tile.types import SharedType, TensorType, element_of
from tessera.ir.types import dtype_of, index

MOST_GROUPS = 3
"""Groups of consumers that work together at most, of a warpgroup each: four warpgroups fill a multiprocessor."""


@irdl_attr_definition
class BarriersType(ParametrizedAttribute, TypeAttribute):
    """A row of phase barriers (PTX: mbarrier objects) in shared memory."""

    name = "tessera_tile.barriers"
    count: IntAttr = param_def()

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Parse `<4>`."""
        with parser.in_angle_brackets():
            return [IntAttr(parser.parse_integer())]

    def print_parameters(self, printer: Printer) -> None:
        """Print `<4>`."""
        with printer.in_angle_brackets():
            printer.print_string(str(self.count.data))

    def verify(self) -> None:
        """Check that there is at least one."""
        if self.count.data < 1:
            raise VerifyException("a row of barriers holds at least one")


@op_definition
class AllocBarriersOp(TesseraOp):
    """Allocates barriers in phase 0. A phase ends when `arrivals` roles have arrived and its expected bytes are in.

    Of barriers that the `programs` of a cluster share, a phase ends when those roles of all programs have arrived.
    """

    name = "tessera_tile.alloc_barriers"
    arrivals = prop_def(IntAttr)
    programs = prop_def(IntAttr)
    result = result_def(BarriersType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "`arrivals` custom<Int>($arrivals) `programs` custom<Int>($programs) attr-dict `:` type($result)"
    custom_directives = (Int,)

    def __init__(self, count: int, arrivals: int, programs: int = 1):
        super().__init__(
            properties={"arrivals": IntAttr(arrivals), "programs": IntAttr(programs)},
            result_types=[BarriersType(IntAttr(count))],
        )

    def verify_(self) -> None:
        """Check that a phase has arrivals."""
        if self.arrivals.data < 1 or self.programs.data < 1:
            raise VerifyException("a phase of a barrier has at least one arrival")


@op_definition
class BarrierExpectOp(TesseraOp):
    """Arrives at barrier `at` and makes its phase wait for `bytes` more bytes of copies."""

    name = "tessera_tile.barrier_expect"
    barriers = operand_def(BarriersType)
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
class BarrierArriveOp(TesseraOp):
    """The role's warps are done with what barrier `at` guards; nothing where `when` is given and false."""

    name = "tessera_tile.barrier_arrive"
    barriers = operand_def(BarriersType)
    at = operand_def(index)
    when = opt_operand_def(i1)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$barriers `[` $at `]` (`when` $when^)? attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, at: SSAValue, when: SSAValue | None = None):
        super().__init__(operands=[barriers, at, when])


@op_definition
class BarrierWaitOp(TesseraOp):
    """Waits until the phase of parity `parity` of barrier `at` has ended."""

    name = "tessera_tile.barrier_wait"
    barriers = operand_def(BarriersType)
    at = operand_def(index)
    parity = operand_def(index)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$barriers `[` $at `]` `parity` $parity attr-dict `:` type($barriers)"

    def __init__(self, barriers: SSAValue, at: SSAValue, parity: SSAValue):
        super().__init__(operands=[barriers, at, parity])


@op_definition
class BulkCopyOp(TesseraOp, Slice):
    """Starts copying a bounded box of a tensor to a shared buffer; its bytes count towards barrier `at`.

    Elements outside the tensor become zero and count too, but past the end of its dimension `loose`, where they may
    become anything, for nobody needs them. The buffer may be read once the barrier's phase has ended.
    Each of the `programs` of a cluster that copy the same box fetches a part of it for all of them. Where `once` is
    true, no other tile fetches the box, so that caches need not keep it. With `tf32` the copy engine rounds f32
    elements to tf32's 10 bits of mantissa, to nearest even, on their way.
    """

    name = "tessera_tile.bulk_copy"
    buffer = operand_def(SharedType)
    tensor = operand_def(TensorType)
    barriers = operand_def(BarriersType)
    at = operand_def(index)
    offsets = var_operand_def(index)
    once = opt_operand_def(i1)
    sizes = prop_def(ArrayAttr[IntAttr])
    drop = prop_def(ArrayAttr[IntAttr])
    programs = prop_def(IntAttr)
    loose = opt_prop_def(IntAttr)
    tf32 = opt_prop_def(UnitAttr)
    traits = traits_def(*effect(Effect.MEMORY))
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$tensor `[` $offsets `]` custom<Ints>($sizes) (`drop` custom<Ints>($drop)^)? `into` $buffer `,` "
        "$barriers `[` $at `]` `programs` custom<Int>($programs) (`loose` custom<Int>($loose)^)? (`once` $once^)? "
        "(`tf32` $tf32^)? attr-dict "
        "`:` type($tensor) `,` type($buffer) `,` type($barriers)"
    )
    custom_directives = (Int, Ints)

    def __init__(
        self,
        buffer: SSAValue,
        tensor: SSAValue,
        barriers: SSAValue,
        at: SSAValue,
        offsets: Sequence[SSAValue],
        sizes: Sequence[int],
        drop: Sequence[int] = (),
        programs: int = 1,
        once: SSAValue | None = None,
        tf32: bool = False,
        loose: int | None = None,
    ):
        super().__init__(
            operands=[buffer, tensor, barriers, at, list(offsets), [once] if once is not None else []],
            properties={
                "sizes": ints(sizes),
                "drop": ints(drop),
                "programs": IntAttr(programs),
                "loose": None if loose is None else IntAttr(loose),
                "tf32": UnitAttr() if tf32 else None,
            },
        )

    def verify_(self) -> None:
        """Check the box, that the buffer holds it, and that somebody copies it."""
        self.verify_slice(self.buffer.type)
        if self.programs.data < 1:
            raise VerifyException("at least one program copies")
        if self.loose is not None and self.loose.data not in self.kept:
            raise VerifyException("the loose dimension is one of the box's")
        if self.tf32 is not None and dtype_of(element_of(self.tensor.type)).name != "f32":
            raise VerifyException("only f32 is rounded to tf32 on its way")


@op_definition
class BulkStoreOp(TesseraOp, Slice):
    """Starts copying a shared buffer to a bounded box of a tensor, after this role's own writes to the buffer.

    Elements outside the tensor are dropped. The buffer may be read, but not written, until a `bulk_wait`, or the end of
    the role, covers the copy; only then is the tensor sure to hold the data.
    """

    name = "tessera_tile.bulk_store"
    buffer = operand_def(SharedType)
    tensor = operand_def(TensorType)
    offsets = var_operand_def(index)
    sizes = prop_def(ArrayAttr[IntAttr])
    drop = prop_def(ArrayAttr[IntAttr])
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = (
        "$buffer `into` $tensor `[` $offsets `]` custom<Ints>($sizes) (`drop` custom<Ints>($drop)^)? attr-dict "
        "`:` type($buffer) `,` type($tensor)"
    )
    custom_directives = (Ints,)

    def __init__(
        self,
        buffer: SSAValue,
        tensor: SSAValue,
        offsets: Sequence[SSAValue],
        sizes: Sequence[int],
        drop: Sequence[int] = (),
    ):
        super().__init__(
            operands=[buffer, tensor, list(offsets)],
            properties={"sizes": ints(sizes), "drop": ints(drop)},
        )

    def verify_(self) -> None:
        """Check the box and that the buffer is as large."""
        self.verify_slice(self.buffer.type)


@op_definition
class BulkWaitOp(TesseraOp):
    """Waits until all but the newest `pending` bulk stores of the role, some of its block, have read their buffers."""

    name = "tessera_tile.bulk_wait"
    pending = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "custom<Int>($pending) attr-dict"
    custom_directives = (Int,)

    def __init__(self, pending: int = 0):
        super().__init__(properties={"pending": IntAttr(pending)})

    def verify_(self) -> None:
        """Check that the number is not negative."""
        if self.pending.data < 0:
            raise VerifyException("the number of pending bulk stores is not negative")
        if self.parent is not None and not any(isinstance(op, BulkStoreOp) for op in self.parent.ops):
            raise VerifyException("bulk_wait waits for bulk stores of its own block, which has none")


@op_definition
class RolesOp(TesseraOp):
    """Splits a program's warps: one warpgroup runs `producer`, the others run `consumer`, at the same time.

    `registers` are the registers a thread of each role gets. Each role starts from `state` (its block's arguments) and
    ends with the state it leaves: where in the rings it is, so that it can go on with another tile.

    Of several consumer `groups`, each runs `consumer` for tiles of its own: of a program's tiles, the first group takes
    the first, the next group the next, and so on in turn, while the producer serves all of them in that order. Groups
    that work `together` all run `consumer` for every tile, each for rows of its own. Groups run side by side, from the
    same state, and `role_group` tells them apart.
    """

    name = "tessera_tile.roles"
    state = var_operand_def(index)
    producer_registers = prop_def(IntAttr)
    consumer_registers = prop_def(IntAttr)
    groups = prop_def(IntAttr)
    together = opt_prop_def(UnitAttr)
    producer = region_def("single_block")
    consumer = region_def("single_block")
    assembly_format = (
        "`(` $state `)` `producer` custom<Int>($producer_registers) $producer "
        "`consumer` custom<Int>($consumer_registers) (`groups` custom<Count>($groups)^)? (`together` $together^)? "
        "$consumer attr-dict"
    )
    custom_directives = (Count, Int)

    def __init__(
        self,
        producer: Block,
        consumer: Block,
        producer_registers: int,
        consumer_registers: int,
        state: Sequence[SSAValue] = (),
        groups: int = 1,
        together: bool = False,
    ):
        super().__init__(
            operands=[list(state)],
            properties={
                "producer_registers": IntAttr(producer_registers),
                "consumer_registers": IntAttr(consumer_registers),
                "groups": IntAttr(groups),
                "together": UnitAttr() if together else None,
            },
            regions=[Region(producer), Region(consumer)],
        )

    def verify_(self) -> None:
        """Check how many groups of consumers there are, and that both roles take and leave the state."""
        if self.groups.data not in (range(2, MOST_GROUPS + 1) if self.together is not None else (1, 2)):
            raise VerifyException("there are one or two groups of consumers, or up to three that work together")
        count = len(self.state)
        for region in self.regions:
            end = region.block.last_op
            if not isinstance(end, RoleEndOp) or len(end.state) != count or len(region.block.args) != count:
                raise VerifyException("a role takes the state and ends with it")


@op_definition
class RoleGroupOp(TesseraOp):
    """The number of the consumer group that runs this op, counted from 0."""

    name = "tessera_tile.role_group"
    result = result_def(index)
    traits = traits_def(*PURE)
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__(result_types=[index])

    def verify_(self) -> None:
        """Check that consumers run it, or a launch whose tiles they will divide."""
        region, roles = self.parent_region(), self.parent_op()
        while roles is not None and not isinstance(roles, RolesOp | GridOp):
            region, roles = roles.parent_region(), roles.parent_op()
        if roles is None or (isinstance(roles, RolesOp) and region is not roles.consumer):
            raise VerifyException("only consumers are counted in groups")


@op_definition
class RoleEndOp(TesseraOp):
    """Ends a role with the state it leaves."""

    name = "tessera_tile.role_end"
    state = var_operand_def(index)
    traits = traits_def(IsTerminator(), HasParent(RolesOp))
    assembly_format = "$state attr-dict"

    def __init__(self, state: Sequence[SSAValue] = ()):
        super().__init__(operands=[list(state)])
