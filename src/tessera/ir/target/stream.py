"""Partial sums that change hands between the programs of a launch, in its workspace, of TIR-T.

See `target.artifact.Launch.slot_bytes` for what a workspace holds.

Source: PTX ISA 9.2, "Memory Consistency Model" (release and acquire patterns), "ld", "st".
"""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr, StringAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import operand_def, prop_def, result_def, traits_def
from xdsl.utils.exceptions import VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.formats import Int
from tessera.ir.layouts import REGISTER
from tessera.ir.target.types import FragmentType, PointerType
from tessera.ir.types import index


@op_definition
class SlotStoreOp(TesseraOp):
    """Writes a fragment to slot `at` (`bytes` large), from byte `offset` on, in the order of its registers."""

    name = "tessera_target.slot_store"
    value = operand_def(FragmentType)
    workspace = operand_def(PointerType)
    at = operand_def(index)
    offset = prop_def(IntAttr)
    bytes = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.MEMORY))
    custom_directives = (Int,)
    assembly_format = (
        "$value `,` $workspace `[` $at `]` `offset` custom<Int>($offset) `bytes` custom<Int>($bytes) attr-dict "
        "`:` type($value) `,` type($workspace)"
    )

    def __init__(self, value: SSAValue, workspace: SSAValue, at: SSAValue, offset: int, bytes: int):
        super().__init__(
            operands=[value, workspace, at], properties={"offset": IntAttr(offset), "bytes": IntAttr(bytes)}
        )

    def verify_(self) -> None:
        """Check that the slot holds the fragment."""
        _verify_slot(self.value.type, self.offset.data, self.bytes.data)


@op_definition
class SlotCombineOp(TesseraOp):
    """Combines a fragment with those that `slot_store`s left in the `count` slots up to `at`, the last one first."""

    name = "tessera_target.slot_combine"
    fn = prop_def(StringAttr)
    value = operand_def(FragmentType)
    workspace = operand_def(PointerType)
    at = operand_def(index)
    count = prop_def(IntAttr)
    offset = prop_def(IntAttr)
    bytes = prop_def(IntAttr)
    result = result_def(FragmentType)
    traits = traits_def(*effect(Effect.MEMORY))
    custom_directives = (Int,)
    assembly_format = (
        "$fn $value `,` $workspace `[` $at `]` `count` custom<Int>($count) `offset` custom<Int>($offset) `bytes` "
        "custom<Int>($bytes) attr-dict `:` type($value) `,` type($workspace) `->` type($result)"
    )

    def __init__(
        self, fn: str, value: SSAValue, workspace: SSAValue, at: SSAValue, count: int, offset: int, bytes: int
    ):
        super().__init__(
            operands=[value, workspace, at],
            properties=_combined(fn, count, offset, bytes),
            result_types=[value.type],
        )

    def verify_(self) -> None:
        """Check that a slot holds the fragment, and what is combined."""
        _verify_combined(self)


@op_definition
class SlotsCombineOp(TesseraOp):
    """Combines a fragment with those that `slot_store`s left in the `left` slots up to `at`, each by some threads.

    What the slots hold has a dimension less: threads with place p of n along the first one take the slots p, p + n, ...
    before the last one, `count` of them or as many as there are.
    """

    name = "tessera_target.slots_combine"
    fn = prop_def(StringAttr)
    value = operand_def(FragmentType)
    workspace = operand_def(PointerType)
    at = operand_def(index)
    left = operand_def(index)
    count = prop_def(IntAttr)
    offset = prop_def(IntAttr)
    bytes = prop_def(IntAttr)
    result = result_def(FragmentType)
    traits = traits_def(*effect(Effect.MEMORY))
    custom_directives = (Int,)
    assembly_format = (
        "$fn $value `,` $workspace `[` $at `]` `of` $left `count` custom<Int>($count) `offset` custom<Int>($offset) "
        "`bytes` custom<Int>($bytes) attr-dict `:` type($value) `,` type($workspace) `->` type($result)"
    )

    def __init__(
        self,
        fn: str,
        value: SSAValue,
        workspace: SSAValue,
        at: SSAValue,
        left: SSAValue,
        count: int,
        offset: int,
        bytes: int,
    ):
        super().__init__(
            operands=[value, workspace, at, left],
            properties=_combined(fn, count, offset, bytes),
            result_types=[value.type],
        )

    def verify_(self) -> None:
        """Check that a slot holds the fragment, and that it tells threads apart along the first dimension only."""
        _verify_combined(self)
        type_ = self.value.type
        assert isinstance(type_, FragmentType)
        layout = type_.linear
        if not layout.rank or any(vector[0] for vector in layout.in_bases(REGISTER)):
            raise VerifyException("a thread has one place along the first dimension")


def _combined(fn: str, count: int, offset: int, bytes: int) -> dict[str, Attribute]:
    """Return the properties of an op that combines what slots hold."""
    return {"fn": StringAttr(fn), "count": IntAttr(count), "offset": IntAttr(offset), "bytes": IntAttr(bytes)}


def _verify_combined(op: SlotCombineOp | SlotsCombineOp) -> None:
    if op.value.type != op.result.type or op.count.data < 1:
        raise VerifyException("fragments of one type are combined, from one slot or more")
    _verify_slot(op.result.type, op.offset.data, op.bytes.data)


def slot_bytes(type_: FragmentType) -> int:
    """Return the bytes of a slot that a fragment takes: all registers of all threads, several copies included."""
    layout = type_.linear
    return layout.registers * layout.lanes * layout.warps * type_.dtype.bytes


def _verify_slot(type_: Attribute, offset: int, bytes_: int) -> None:
    assert isinstance(type_, FragmentType)
    if offset < 0 or offset % 16 or bytes_ % 16 or offset + slot_bytes(type_) > bytes_:
        raise VerifyException("a slot holds the fragment from a multiple of 16 bytes on")


@op_definition
class FlagSetOp(TesseraOp):
    """Sets flag `at` once all threads of the role have come here, after all they wrote."""

    name = "tessera_target.flag_set"
    workspace = operand_def(PointerType)
    at = operand_def(index)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = "$workspace `[` $at `]` attr-dict `:` type($workspace)"

    def __init__(self, workspace: SSAValue, at: SSAValue):
        super().__init__(operands=[workspace, at])


@op_definition
class FlagTakeOp(TesseraOp):
    """Lets all threads of the role wait until flag `at` is set, see what was written before, and clears the flag."""

    name = "tessera_target.flag_take"
    workspace = operand_def(PointerType)
    at = operand_def(index)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = "$workspace `[` $at `]` attr-dict `:` type($workspace)"

    def __init__(self, workspace: SSAValue, at: SSAValue):
        super().__init__(operands=[workspace, at])


@op_definition
class FlagsTakeOp(TesseraOp):
    """Does what a `flag_take` of each of the `count` flags from `at` on does; there are no more than threads."""

    name = "tessera_target.flags_take"
    workspace = operand_def(PointerType)
    at = operand_def(index)
    count = operand_def(index)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = "$workspace `[` $at `]` `for` $count attr-dict `:` type($workspace)"

    def __init__(self, workspace: SSAValue, at: SSAValue, count: SSAValue):
        super().__init__(operands=[workspace, at, count])
