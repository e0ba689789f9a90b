"""Atomic accesses to single elements, and fences."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    operand_def,
    opt_operand_def,
    opt_result_def,
    prop_def,
    traits_def,
    var_operand_def,
)

from tessera.ir.atomics import AtomicAccess, verify_order
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import Effect, effect
from tessera.ir.tile.memory import shape_at, verify_indices, verify_mask
from tessera.ir.tile.shared import verify_elements
from tessera.ir.tile.types import SharedType, TensorType, TileType, shape_of


@op_definition
class AtomicOp(TesseraOp, AtomicAccess):
    """Reads, writes or updates single elements of a tensor atomically, and gives their old values.

    `load` takes no value, `store` gives none; `compare` is the expected value of `compare_exchange`. What lies outside
    the tensor, or is masked off, is left alone and gives zero.
    """

    name = "tessera_tile.atomic"
    tensor = operand_def(TensorType)
    indices = var_operand_def()
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
        "$fn $tensor `[` $indices `]` (`value` $value^ `:` type($value))? (`compare` $compare^ `:` type($compare))? "
        "(`mask` $mask^ `:` type($mask))? `order` $order `scope` $scope attr-dict "
        "`:` type($tensor) `[` type($indices) `]` (`->` type($result)^)?"
    )

    def __init__(
        self,
        fn: str,
        value: SSAValue | None,
        tensor: SSAValue,
        indices: Sequence[SSAValue],
        mask: SSAValue | None = None,
        compare: SSAValue | None = None,
        order: str = "relaxed",
        scope: str = "device",
    ):
        assert isinstance(tensor.type, TensorType)
        shape = shape_at(indices)
        element = TileType.of(shape, tensor.type.element) if shape else tensor.type.element
        super().__init__(
            operands=[tensor, list(indices), value, compare, mask],
            properties={"fn": StringAttr(fn), "order": StringAttr(order), "scope": StringAttr(scope)},
            result_types=[None if fn == "store" else element],
        )

    def verify_(self) -> None:
        """Check the names of function, order and scope, and that operands have one shape."""
        self.verify_access()
        shape = shape_at(self.indices)
        verify_indices(self.tensor.type, list(self.indices), shape)
        verify_mask(self.mask, shape)


@op_definition
class SharedAtomicOp(TesseraOp, AtomicAccess):
    """Reads, writes or updates single elements of a shared buffer atomically, as `AtomicOp` does those of a tensor."""

    name = "tessera_tile.shared_atomic"
    buffer = operand_def(SharedType)
    indices = var_operand_def()
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
        "$fn $buffer `[` $indices `]` (`value` $value^ `:` type($value))? (`compare` $compare^ `:` type($compare))? "
        "(`mask` $mask^ `:` type($mask))? `order` $order `scope` $scope attr-dict "
        "`:` type($buffer) `[` type($indices) `]` (`->` type($result)^)?"
    )

    def __init__(
        self,
        fn: str,
        value: SSAValue | None,
        buffer: SSAValue,
        indices: Sequence[SSAValue],
        mask: SSAValue | None = None,
        compare: SSAValue | None = None,
        order: str = "relaxed",
        scope: str = "device",
    ):
        assert isinstance(buffer.type, SharedType)
        shape = shape_of(indices[0].type)
        element = TileType.of(shape, buffer.type.element) if shape else buffer.type.element
        super().__init__(
            operands=[buffer, list(indices), value, compare, mask],
            properties={"fn": StringAttr(fn), "order": StringAttr(order), "scope": StringAttr(scope)},
            result_types=[None if fn == "store" else element],
        )

    def verify_(self) -> None:
        """Check the names of function, order and scope, the buffer, and that operands have one shape."""
        self.verify_access()
        verify_elements(self.buffer.type, list(self.indices), self.mask, shape_of(self.indices[0].type))


@op_definition
class FenceOp(TesseraOp):
    """Orders all accesses of the program before it and after it, for the programs that `scope` names."""

    name = "tessera_tile.fence"
    order = prop_def(StringAttr)
    scope = prop_def(StringAttr)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = "$order `scope` $scope attr-dict"

    def __init__(self, order: str, scope: str):
        super().__init__(properties={"order": StringAttr(order), "scope": StringAttr(scope)})

    def verify_(self) -> None:
        """Check the names of order and scope."""
        verify_order("fence", self.order.data, self.scope.data)


def orders_accesses(op: Operation) -> bool:
    """Return whether accesses to other memory must stay before or after `op`: a fence, or an atomic with an order."""
    return isinstance(op, FenceOp) or (isinstance(op, AtomicOp | SharedAtomicOp) and op.order.data != "relaxed")
