"""The explicit memory level: shared buffers, asynchronous copies and barriers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects.builtin import ArrayAttr, IntAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Int, Ints
from tessera.ir.tile.memory import Slice, verify_mask
from tessera.ir.tile.types import SharedType, TensorType, TileType, describe, element_of, shape_of
from tessera.ir.types import index


@op_definition
class AllocSharedOp(TesseraOp):
    """Allocates a buffer in shared memory for the program's life; its contents are undefined."""

    name = "tessera_tile.alloc_shared"
    result = result_def(SharedType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, shape: Sequence[int], element: Attribute, swizzle: str = "none"):
        super().__init__(result_types=[SharedType.of(shape, element, swizzle)])


@op_definition
class SharedViewOp(TesseraOp):
    """The sub-buffer at `index` of the first dimension, which disappears (one stage of a ring)."""

    name = "tessera_tile.shared_view"
    source = operand_def(SharedType)
    index = operand_def(index)
    result = result_def(SharedType)
    traits = traits_def(*PURE)
    assembly_format = "$source `[` $index `]` attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, at: SSAValue):
        type_ = source.type
        assert isinstance(type_, SharedType)
        first, *rest = type_.permutation
        stored = [axis - 1 for axis in rest] if first == 0 else range(len(rest))
        result = SharedType.of(type_.shape[1:], type_.element, type_.swizzle.data, stored)
        super().__init__(operands=[source, at], result_types=[result])

    def verify_(self) -> None:
        """Check that the first stored dimension is the one removed."""
        if not isinstance(self.source.type, SharedType) or self.source.type.permutation[0] != 0:
            raise VerifyException("a stage is taken along the first stored dimension")
        if shape_of(self.source.type)[1:] != shape_of(self.result.type):
            raise VerifyException(f"a stage of {describe(self.source.type)} is not {describe(self.result.type)}")
        if [axis - 1 for axis in self.source.type.permutation[1:]] != list(self.result.type.permutation):
            raise VerifyException("a stage is stored in the order of the buffer's dimensions")


@op_definition
class SharedTransposeOp(TesseraOp):
    """A view of a shared buffer with its dimensions permuted; nothing moves."""

    name = "tessera_tile.shared_transpose"
    source = operand_def(SharedType)
    perm = prop_def(ArrayAttr[IntAttr])
    result = result_def(SharedType)
    traits = traits_def(*PURE)
    custom_directives = (Ints,)
    assembly_format = "$source custom<Ints>($perm) attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, perm: Sequence[int]):
        type_ = source.type
        assert isinstance(type_, SharedType)
        shape = [type_.shape[p] for p in perm]
        stored = [type_.permutation[p] for p in perm]
        super().__init__(
            operands=[source],
            properties={"perm": ints(perm)},
            result_types=[SharedType.of(shape, type_.element, type_.swizzle.data, stored)],
        )

    def verify_(self) -> None:
        """Check that the result is the permuted view."""
        perm = tuple(axis.data for axis in self.perm.data)
        shape = shape_of(self.source.type)
        if sorted(perm) != list(range(len(shape))) or shape_of(self.result.type) != tuple(shape[p] for p in perm):
            raise VerifyException("the result is the permuted view of the source")


def allocation_of(buffer: SSAValue) -> SSAValue:
    """Return the buffer that another one is a view of, by whatever stages and transposes."""
    while isinstance(buffer.owner, SharedViewOp | SharedTransposeOp):
        buffer = buffer.owner.source
    return buffer


def views_of(buffer: SSAValue) -> Iterator[tuple[SSAValue, int]]:
    """Yield a buffer and all views of it, each with how many dimensions its stages have taken away."""
    work = [(buffer, 0)]
    while work:
        view, taken = work.pop()
        yield view, taken
        for user in (use.operation for use in view.uses):
            if isinstance(user, SharedViewOp | SharedTransposeOp):
                work.append((user.result, taken + isinstance(user, SharedViewOp)))


@op_definition
class SharedLoadOp(TesseraOp):
    """Reads a whole shared buffer as a tile."""

    name = "tessera_tile.shared_load"
    buffer = operand_def(SharedType)
    result = result_def(TileType)
    traits = traits_def(*effect(Effect.STATE, reads_only=True))
    assembly_format = "$buffer attr-dict `:` type($buffer) `->` type($result)"

    def __init__(self, buffer: SSAValue):
        type_ = buffer.type
        assert isinstance(type_, SharedType)
        super().__init__(operands=[buffer], result_types=[TileType.of(type_.shape, type_.element)])

    def verify_(self) -> None:
        """Check that tile and buffer agree."""
        _verify_agree(self.buffer, self.result)


@op_definition
class SharedStoreOp(TesseraOp):
    """Writes a tile to a whole shared buffer."""

    name = "tessera_tile.shared_store"
    value = operand_def(TileType)
    buffer = operand_def(SharedType)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "$value `,` $buffer attr-dict `:` type($value) `,` type($buffer)"

    def __init__(self, value: SSAValue, buffer: SSAValue):
        super().__init__(operands=[value, buffer])

    def verify_(self) -> None:
        """Check that tile and buffer agree."""
        _verify_agree(self.buffer, self.value)


@op_definition
class SharedGatherOp(TesseraOp):
    """Reads single elements of a shared buffer at index tiles (or scalars), one index for each dimension.

    What lies outside the buffer, or is masked off, is not read and becomes zero.
    """

    name = "tessera_tile.shared_gather"
    buffer = operand_def(SharedType)
    indices = var_operand_def()
    mask = opt_operand_def()
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.STATE, reads_only=True))
    assembly_format = (
        "$buffer `[` $indices `]` (`mask` $mask^ `:` type($mask))? attr-dict "
        "`:` type($buffer) `[` type($indices) `]` `->` type($result)"
    )

    def __init__(self, buffer: SSAValue, indices: Sequence[SSAValue], mask: SSAValue | None = None):
        shape, element = shape_of(indices[0].type), element_of(buffer.type)
        super().__init__(
            operands=[buffer, list(indices), mask],
            result_types=[TileType.of(shape, element) if shape else element],
        )

    def verify_(self) -> None:
        """Check the buffer, and that indices, mask and result have one shape."""
        verify_elements(self.buffer.type, list(self.indices), self.mask, shape_of(self.result.type))
        if element_of(self.result.type) != element_of(self.buffer.type):
            raise VerifyException("the result has the buffer's dtype")


@op_definition
class SharedScatterOp(TesseraOp):
    """Writes single elements of a shared buffer at index tiles (or scalars), one index for each dimension.

    What lies outside the buffer, or is masked off, is not written.
    """

    name = "tessera_tile.shared_scatter"
    value = operand_def()
    buffer = operand_def(SharedType)
    indices = var_operand_def()
    mask = opt_operand_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$value `,` $buffer `[` $indices `]` (`mask` $mask^ `:` type($mask))? attr-dict "
        "`:` type($value) `,` type($buffer) `[` type($indices) `]`"
    )

    def __init__(self, value: SSAValue, buffer: SSAValue, indices: Sequence[SSAValue], mask: SSAValue | None = None):
        super().__init__(operands=[value, buffer, list(indices), mask])

    def verify_(self) -> None:
        """Check the buffer, and that indices, mask and value have one shape."""
        verify_elements(self.buffer.type, list(self.indices), self.mask, shape_of(self.value.type))
        if element_of(self.value.type) != element_of(self.buffer.type):
            raise VerifyException("the value has the buffer's dtype")


def verify_elements(
    buffer: Attribute, indices: Sequence[SSAValue], mask: SSAValue | None, shape: tuple[int, ...]
) -> None:
    """Check what names single elements of a shared buffer: an index of one shape for each dimension, and a mask."""
    assert isinstance(buffer, SharedType)
    if buffer.swizzle.data != "none":
        raise VerifyException("elements of a swizzled buffer are not accessed one by one")
    if len(indices) != len(buffer.shape) or any(shape_of(i.type) != shape for i in indices):
        raise VerifyException(f"{describe(buffer)} takes {len(buffer.shape)} indices of one shape")
    verify_mask(mask, shape)


def _verify_agree(buffer: SSAValue, tile: SSAValue) -> None:
    if not isinstance(buffer.type, SharedType) or not isinstance(tile.type, TileType):
        raise VerifyException("a shared buffer and a tile are needed")
    if buffer.type.shape != tile.type.shape or buffer.type.element != tile.type.element:
        raise VerifyException(f"{describe(buffer.type)} does not hold {describe(tile.type)}")


@op_definition
class CpAsyncOp(TesseraOp, Slice):
    """Starts copying a bounded box of a tensor to a shared buffer; elements outside become zero.

    The copy belongs to the next `commit_group`; the buffer may be read after `wait_group` and a `barrier`.
    """

    name = "tessera_tile.cp_async"
    buffer = operand_def(SharedType)
    tensor = operand_def(TensorType)
    offsets = var_operand_def(index)
    sizes = prop_def(ArrayAttr[IntAttr])
    drop = prop_def(ArrayAttr[IntAttr])
    traits = traits_def(*effect(Effect.MEMORY))
    custom_directives = (Ints,)
    assembly_format = (
        "$tensor `[` $offsets `]` custom<Ints>($sizes) (`drop` custom<Ints>($drop)^)? "
        "`into` $buffer attr-dict `:` type($tensor) `,` type($buffer)"
    )

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
        """Check the box and that the buffer holds it."""
        self.verify_slice(self.buffer.type)


@op_definition
class CommitGroupOp(TesseraOp):
    """Closes the group of asynchronous copies started since the last one."""

    name = "tessera_tile.commit_group"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class WaitGroupOp(TesseraOp):
    """Waits until at most `pending` of the newest committed groups are unfinished."""

    name = "tessera_tile.wait_group"
    pending = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int,)
    assembly_format = "custom<Int>($pending) attr-dict"

    def __init__(self, pending: int = 0):
        super().__init__(properties={"pending": IntAttr(pending)})

    def verify_(self) -> None:
        """Check that the number is not negative."""
        if self.pending.data < 0:
            raise VerifyException("the number of pending groups is not negative")


@op_definition
class ProxyFenceOp(TesseraOp):
    """Lets later products of warpgroups read what the program has stored, once a barrier has followed.

    Their instructions read shared memory by another path than threads (PTX: the asynchronous proxy).
    """

    name = "tessera_tile.proxy_fence"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class BarrierOp(TesseraOp):
    """Waits for every lane of the group and orders their accesses to shared memory; convergent."""

    name = "tessera_tile.barrier"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()
