"""Atomic accesses to single elements, and fences, of TIR-T."""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    operand_def,
    opt_operand_def,
    opt_result_def,
    prop_def,
    result_def,
    traits_def,
)

from tessera.ir.atomics import AtomicAccess, verify_order
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.target.types import BufferType, PointerType, element_of, with_element


@op_definition
class AddressOp(TesseraOp):
    """The address of a buffer's first element, for atomics of elements of it."""

    name = "tessera_target.address"
    buffer = operand_def(BufferType)
    result = result_def(PointerType)
    traits = traits_def(*PURE)
    assembly_format = "$buffer attr-dict `:` type($buffer) `->` type($result)"

    def __init__(self, buffer: SSAValue):
        assert isinstance(buffer.type, BufferType)
        super().__init__(operands=[buffer], result_types=[PointerType.of(buffer.type.element, buffer.type.space.data)])


@op_definition
class AtomicOp(TesseraOp, AtomicAccess):
    """Reads, writes or updates single elements at `offsets` atomically, once each, and gives their old values.

    Of several threads with a copy of an element only the one that accesses it gets the old value. Its order is that of
    the thread's own accesses; barriers make it the program's.
    """

    name = "tessera_target.atomic"
    pointer = operand_def(PointerType)
    offsets = operand_def()
    value = opt_operand_def()
    compare = opt_operand_def()
    mask = opt_operand_def()
    fn = prop_def(StringAttr)
    order = prop_def(StringAttr)
    scope = prop_def(StringAttr)
    result = opt_result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = (
        "$fn $pointer `[` $offsets `]` (`value` $value^ `:` type($value))? (`compare` $compare^ `:` type($compare))? "
        "(`mask` $mask^ `:` type($mask))? `order` $order `scope` $scope attr-dict "
        "`:` type($pointer) `[` type($offsets) `]` (`->` type($result)^)?"
    )

    def __init__(
        self,
        fn: str,
        value: SSAValue | None,
        pointer: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None,
        compare: SSAValue | None,
        order: str,
        scope: str,
    ):
        super().__init__(
            operands=[pointer, offsets, value, compare, mask],
            properties={"fn": StringAttr(fn), "order": StringAttr(order), "scope": StringAttr(scope)},
            result_types=[None if fn == "store" else with_element(offsets.type, element_of(pointer.type))],
        )

    def verify_(self) -> None:
        """Check the names of function, order and scope."""
        self.verify_access()


@op_definition
class FenceOp(TesseraOp):
    """Orders each thread's own accesses before it and after it, for the threads of the scope."""

    name = "tessera_target.fence"
    order = prop_def(StringAttr)
    scope = prop_def(StringAttr)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = "$order `scope` $scope attr-dict"

    def __init__(self, order: str, scope: str):
        super().__init__(properties={"order": StringAttr(order), "scope": StringAttr(scope)})

    def verify_(self) -> None:
        """Check the names of order and scope."""
        verify_order("fence", self.order.data, self.scope.data)
