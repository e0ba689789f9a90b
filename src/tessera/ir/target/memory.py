"""Memory of TIR-T: boxes of tensors, buffers, copies and barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import ArrayAttr, IntAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.utils.exceptions import VerifyException

from tessera.ir.attributes import ints, number, text
from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.effects import PURE, Effect, effect
from tessera.ir.formats import Int, Ints
from tessera.ir.target.types import BufferType, FragmentType, PointerType, element_of
from tessera.ir.types import i1, index


class Box:
    """A box of a strided tensor: per tensor dimension an offset, a stride (elements) and a size (elements).

    `axes[i]` is the tensor dimension of fragment axis `i`; `checked` lists the dimensions whose bounds must be
    tested; `vector` is the number of neighbouring elements one access moves.
    """

    if TYPE_CHECKING:  # at run time xDSL takes every annotation for a field of the op
        axes: Any
        checked: Any
        vector: Any

    @property
    def axis_list(self) -> tuple[int, ...]:
        """The tensor dimension of each fragment axis."""
        return tuple(axis.data for axis in self.axes.data)

    @property
    def checked_list(self) -> tuple[int, ...]:
        """Tensor dimensions whose bounds are tested."""
        return tuple(axis.data for axis in self.checked.data)


def _verify_box(op: LoadOp | StoreOp | MemcpyOp) -> None:
    rank = len(op.offsets)
    if len(op.strides) != rank or len(op.sizes) != rank:
        raise VerifyException("a box has one offset, stride and size per tensor dimension")
    if any(not 0 <= axis < rank for axis in (*op.axis_list, *op.checked_list)):
        raise VerifyException("an axis of the box does not exist")
    if not isinstance(op, MemcpyOp) and len(op.tile) not in (0, len(op.axis_list)):
        raise VerifyException("a tile has one size for each axis of the box")


@op_definition
class LoadOp(TesseraOp, Box):
    """Loads a box of a tensor into a fragment (or scalar); what is outside or masked off becomes `fill` or zero.

    With `seen`, the box may begin anywhere, and its rows lie inside: the aligned 16 bytes around an access are loaded.
    With `cut`, the tensor may end within an access. With `early`, the box begins up to so many elements before the
    tensor, of which it has all neighbours: the tensor may begin and end within accesses, which are aligned if not
    `seen`. With `behind`, the box begins so many elements behind where an access of `vector` elements may begin, and
    the tensor ends with one: the accesses around are loaded. With `tile`, the box has so many elements along each axis,
    of which the fragment has more.
    """

    name = "tessera_target.load"
    pointer = operand_def(PointerType)
    offsets = var_operand_def(index)
    strides = var_operand_def(index)
    sizes = var_operand_def(index)
    mask = opt_operand_def()
    fill = opt_operand_def()
    axes = prop_def(ArrayAttr[IntAttr])
    checked = prop_def(ArrayAttr[IntAttr])
    vector = prop_def(IntAttr)
    seen = opt_prop_def(UnitAttr)
    cut = opt_prop_def(UnitAttr)
    early = prop_def(ArrayAttr[IntAttr])
    behind = prop_def(ArrayAttr[IntAttr])
    tile = prop_def(ArrayAttr[IntAttr])
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY, reads_only=True))
    custom_directives = (Int, Ints)
    assembly_format = (
        "$pointer `[` $offsets `]` `strides` `[` $strides `]` `sizes` `[` $sizes `]` "
        "`axes` custom<Ints>($axes) (`checked` custom<Ints>($checked)^)? `vector` custom<Int>($vector) "
        "(`seen` $seen^)? (`cut` $cut^)? (`early` custom<Ints>($early)^)? (`behind` custom<Ints>($behind)^)? "
        "(`tile` custom<Ints>($tile)^)? (`mask` $mask^ `:` type($mask))? (`fill` $fill^ `:` type($fill))? attr-dict "
        "`:` type($pointer) `->` type($result)"
    )

    def __init__(
        self,
        pointer: SSAValue,
        offsets: Sequence[SSAValue],
        strides: Sequence[SSAValue],
        sizes: Sequence[SSAValue],
        result: Attribute,
        axes: Sequence[int],
        checked: Sequence[int],
        vector: int = 1,
        mask: SSAValue | None = None,
        fill: SSAValue | None = None,
        seen: bool = False,
        cut: bool = False,
        behind: int = 0,
        early: int = 0,
        tile: Sequence[int] = (),
    ):
        super().__init__(
            operands=[pointer, list(offsets), list(strides), list(sizes), mask, fill],
            properties={
                "axes": ints(axes),
                "checked": ints(checked),
                "vector": number(vector),
                "seen": UnitAttr() if seen else None,
                "cut": UnitAttr() if cut else None,
                "early": ints([early] if early else ()),
                "behind": ints([behind] if behind else ()),
                "tile": ints(tile),
            },
            result_types=[result],
        )

    def verify_(self) -> None:
        """Check the box."""
        _verify_box(self)
        behind = [number.data for number in self.behind.data]
        if behind and (len(behind) > 1 or not 0 < behind[0] < self.vector.data or self.mask is not None):
            raise VerifyException("a box begins within an access, and nothing masks it")


@op_definition
class StoreOp(TesseraOp, Box):
    """Stores a fragment (or scalar) to a box of a tensor; replicated elements are written once.

    Where `stream` is true, nothing reads the elements soon: they may go past the caches. With `seen`, accesses move
    `vector` elements where the box begins at a multiple of 16 bytes, else one, or 16 bytes that the lanes of
    a warp pass on to each other. With `cut`, the tensor may end within an access. With `tile`, the box has so many
    elements along each axis, of which the fragment has more.
    """

    name = "tessera_target.store"
    value = operand_def()
    pointer = operand_def(PointerType)
    offsets = var_operand_def(index)
    strides = var_operand_def(index)
    sizes = var_operand_def(index)
    mask = opt_operand_def()
    stream = opt_operand_def(i1)
    axes = prop_def(ArrayAttr[IntAttr])
    checked = prop_def(ArrayAttr[IntAttr])
    vector = prop_def(IntAttr)
    seen = opt_prop_def(UnitAttr)
    cut = opt_prop_def(UnitAttr)
    tile = prop_def(ArrayAttr[IntAttr])
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY))
    custom_directives = (Int, Ints)
    assembly_format = (
        "$value `,` $pointer `[` $offsets `]` `strides` `[` $strides `]` `sizes` `[` $sizes `]` "
        "`axes` custom<Ints>($axes) (`checked` custom<Ints>($checked)^)? `vector` custom<Int>($vector) "
        "(`seen` $seen^)? (`cut` $cut^)? (`tile` custom<Ints>($tile)^)? "
        "(`mask` $mask^ `:` type($mask))? (`stream` $stream^)? attr-dict `:` type($value) `,` type($pointer)"
    )

    def __init__(
        self,
        value: SSAValue,
        pointer: SSAValue,
        offsets: Sequence[SSAValue],
        strides: Sequence[SSAValue],
        sizes: Sequence[SSAValue],
        axes: Sequence[int],
        checked: Sequence[int],
        vector: int = 1,
        mask: SSAValue | None = None,
        stream: SSAValue | None = None,
        seen: bool = False,
        cut: bool = False,
        tile: Sequence[int] = (),
    ):
        super().__init__(
            operands=[value, pointer, list(offsets), list(strides), list(sizes), mask, stream],
            properties={
                "axes": ints(axes),
                "checked": ints(checked),
                "vector": number(vector),
                "seen": UnitAttr() if seen else None,
                "cut": UnitAttr() if cut else None,
                "tile": ints(tile),
            },
        )

    def verify_(self) -> None:
        """Check the box."""
        _verify_box(self)


@op_definition
class MisalignmentOp(TesseraOp):
    """How many elements an element of a tensor lies behind a multiple of 16 bytes."""

    name = "tessera_target.misalignment"
    pointer = operand_def(PointerType)
    offsets = var_operand_def(index)
    strides = var_operand_def(index)
    result = result_def(index)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*PURE)
    assembly_format = "$pointer `[` $offsets `]` `strides` `[` $strides `]` attr-dict `:` type($pointer)"

    def __init__(self, pointer: SSAValue, offsets: Sequence[SSAValue], strides: Sequence[SSAValue]):
        super().__init__(operands=[pointer, list(offsets), list(strides)], result_types=[index])

    def verify_(self) -> None:
        """Check that there is a stride for each offset."""
        if len(self.offsets) != len(self.strides):
            raise VerifyException(f"{len(self.offsets)} offsets, {len(self.strides)} strides")


@op_definition
class PrefetchOp(TesseraOp):
    """Asks for the cache line of one element, soon to be read; anywhere, also past the tensor, as nothing is read."""

    name = "tessera_target.prefetch"
    pointer = operand_def(PointerType)
    offsets = var_operand_def(index)
    strides = var_operand_def(index)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY))
    assembly_format = "$pointer `[` $offsets `]` `strides` `[` $strides `]` attr-dict `:` type($pointer)"

    def __init__(self, pointer: SSAValue, offsets: Sequence[SSAValue], strides: Sequence[SSAValue]):
        super().__init__(operands=[pointer, list(offsets), list(strides)])

    def verify_(self) -> None:
        """Check that there is a stride for each offset."""
        if len(self.offsets) != len(self.strides):
            raise VerifyException(f"{len(self.offsets)} offsets, {len(self.strides)} strides")


@op_definition
class GatherOp(TesseraOp):
    """Loads single elements at `offsets` (elements from the pointer); masked-off ones become `fill` or zero.

    Of gathers, scatters and atomics of TIR-T, what the mask leaves is inside the tensor. `vector` is an axis of the
    fragment and a number of elements: so many along it are aligned neighbours in memory that the mask treats alike.
    """

    name = "tessera_target.gather"
    pointer = operand_def(PointerType)
    offsets = operand_def()
    mask = opt_operand_def()
    fill = opt_operand_def()
    vector = prop_def(ArrayAttr[IntAttr])
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY, reads_only=True))
    custom_directives = (Ints,)
    assembly_format = (
        "$pointer `[` $offsets `]` (`mask` $mask^ `:` type($mask))? (`fill` $fill^ `:` type($fill))? "
        "(`vector` custom<Ints>($vector)^)? attr-dict `:` type($pointer) `[` type($offsets) `]` `->` type($result)"
    )

    def __init__(
        self,
        pointer: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None = None,
        fill: SSAValue | None = None,
        vector: Sequence[int] = (),
    ):
        from tessera.ir.target.types import with_element

        result = with_element(offsets.type, element_of(pointer.type))
        super().__init__(
            operands=[pointer, offsets, mask, fill], properties={"vector": ints(vector)}, result_types=[result]
        )


@op_definition
class ScatterOp(TesseraOp):
    """Stores single elements at `offsets`; replicated elements are written once. `vector` is as for gathers."""

    name = "tessera_target.scatter"
    value = operand_def()
    pointer = operand_def(PointerType)
    offsets = operand_def()
    mask = opt_operand_def()
    vector = prop_def(ArrayAttr[IntAttr])
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY))
    custom_directives = (Ints,)
    assembly_format = (
        "$value `,` $pointer `[` $offsets `]` (`mask` $mask^ `:` type($mask))? "
        "(`vector` custom<Ints>($vector)^)? attr-dict `:` type($value) `,` type($pointer) `[` type($offsets) `]`"
    )

    def __init__(
        self,
        value: SSAValue,
        pointer: SSAValue,
        offsets: SSAValue,
        mask: SSAValue | None = None,
        vector: Sequence[int] = (),
    ):
        super().__init__(operands=[value, pointer, offsets, mask], properties={"vector": ints(vector)})


@op_definition
class AllocOp(TesseraOp):
    """Reserves a buffer for the program's life. `offset` is its byte position in its space, -1 until placed.

    Buffers marked `transient` may share their bytes with each other: a barrier stands before every use.
    """

    name = "tessera_target.alloc"
    offset = prop_def(IntAttr)
    transient = opt_prop_def(UnitAttr)
    result = result_def(BufferType)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int,)
    assembly_format = "`at` custom<Int>($offset) (`transient` $transient^)? attr-dict `:` type($result)"

    def __init__(self, type_: BufferType, offset: int = -1, transient: bool = False):
        super().__init__(
            properties={"offset": number(offset), "transient": UnitAttr() if transient else None},
            result_types=[type_],
        )


@op_definition
class ViewOp(TesseraOp):
    """The sub-buffer at `index` of the first stored dimension, or (without index) a re-ordered view."""

    name = "tessera_target.view"
    source = operand_def(BufferType)
    at = opt_operand_def(index)
    result = result_def(BufferType)
    traits = traits_def(*PURE)
    assembly_format = "$source (`[` $at^ `]`)? attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, result: BufferType, at: SSAValue | None = None):
        super().__init__(operands=[source, at], result_types=[result])


@op_definition
class BufferLoadOp(TesseraOp):
    """Reads the elements of a buffer at `offsets` + the fragment's coordinates.

    `axes[i]` is the buffer dimension of fragment axis `i`. Where `fill` is given, coordinates may lie outside the
    buffer and give it.
    """

    name = "tessera_target.buffer_load"
    buffer = operand_def(BufferType)
    offsets = var_operand_def(index)
    fill = opt_operand_def()
    axes = prop_def(ArrayAttr[IntAttr])
    vector = prop_def(IntAttr)
    result = result_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.STATE, reads_only=True))
    custom_directives = (Int, Ints)
    assembly_format = (
        "$buffer `[` $offsets `]` `axes` custom<Ints>($axes) `vector` custom<Int>($vector) "
        "(`fill` $fill^ `:` type($fill))? attr-dict `:` type($buffer) `->` type($result)"
    )

    def __init__(
        self,
        buffer: SSAValue,
        result: Attribute,
        offsets: Sequence[SSAValue] = (),
        axes: Sequence[int] | None = None,
        vector: int = 1,
        fill: SSAValue | None = None,
    ):
        assert isinstance(buffer.type, BufferType)
        super().__init__(
            operands=[buffer, list(offsets), fill],
            properties={
                "axes": ints(range(len(buffer.type.shape)) if axes is None else axes),
                "vector": number(vector),
            },
            result_types=[result],
        )


@op_definition
class BufferGatherOp(TesseraOp):
    """Reads single elements of a buffer without swizzle at `offsets`, in elements from its start."""

    name = "tessera_target.buffer_gather"
    buffer = operand_def(BufferType)
    offsets = operand_def()
    result = result_def()
    traits = traits_def(*effect(Effect.STATE, reads_only=True))
    assembly_format = "$buffer `[` $offsets `]` attr-dict `:` type($buffer) `,` type($offsets) `->` type($result)"

    def __init__(self, buffer: SSAValue, offsets: SSAValue):
        from tessera.ir.target.types import with_element

        assert isinstance(buffer.type, BufferType)
        super().__init__(operands=[buffer, offsets], result_types=[with_element(offsets.type, buffer.type.element)])


@op_definition
class BufferScatterOp(TesseraOp):
    """Writes single elements of a buffer without swizzle at `offsets`, in elements from its start.

    Elements that are masked off are not written, and replicated ones once.
    """

    name = "tessera_target.buffer_scatter"
    value = operand_def()
    buffer = operand_def(BufferType)
    offsets = operand_def()
    mask = opt_operand_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = (
        "$value `,` $buffer `[` $offsets `]` (`mask` $mask^ `:` type($mask))? attr-dict "
        "`:` type($value) `,` type($buffer) `[` type($offsets) `]`"
    )

    def __init__(self, value: SSAValue, buffer: SSAValue, offsets: SSAValue, mask: SSAValue | None = None):
        super().__init__(operands=[value, buffer, offsets, mask])


@op_definition
class BufferStoreOp(TesseraOp):
    """Writes a fragment to a buffer at `offsets` + its coordinates; replicated elements are written once or alike.

    Where it is `owned`, the copies of an element differ, and the thread that would store it to a tensor writes its own.
    """

    name = "tessera_target.buffer_store"
    value = operand_def()
    buffer = operand_def(BufferType)
    offsets = var_operand_def(index)
    axes = prop_def(ArrayAttr[IntAttr])
    vector = prop_def(IntAttr)
    owned = opt_prop_def(UnitAttr)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int, Ints)
    assembly_format = (
        "$value `,` $buffer `[` $offsets `]` `axes` custom<Ints>($axes) `vector` custom<Int>($vector) "
        "(`owned` $owned^)? attr-dict `:` type($value) `,` type($buffer)"
    )

    def __init__(
        self,
        value: SSAValue,
        buffer: SSAValue,
        offsets: Sequence[SSAValue] = (),
        axes: Sequence[int] | None = None,
        vector: int = 1,
        owned: bool = False,
    ):
        assert isinstance(buffer.type, BufferType)
        super().__init__(
            operands=[value, buffer, list(offsets)],
            properties={
                "axes": ints(range(len(buffer.type.shape)) if axes is None else axes),
                "vector": number(vector),
                "owned": UnitAttr() if owned else None,
            },
        )


@op_definition
class MemcpyOp(TesseraOp, Box):
    """Copies a box of a tensor to a buffer; what is outside becomes zero.

    `engine` is `cp.async` (completes at `wait`), or `plain` (complete when the op is). `layout` is given by the
    fragment shape one pass of the group moves; the backend repeats it.
    """

    name = "tessera_target.memcpy"
    buffer = operand_def(BufferType)
    pointer = operand_def(PointerType)
    offsets = var_operand_def(index)
    strides = var_operand_def(index)
    sizes = var_operand_def(index)
    axes = prop_def(ArrayAttr[IntAttr])
    checked = prop_def(ArrayAttr[IntAttr])
    vector = prop_def(IntAttr)
    engine = prop_def(StringAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(*effect(Effect.MEMORY))
    custom_directives = (Int, Ints)
    assembly_format = (
        "$engine $pointer `[` $offsets `]` `strides` `[` $strides `]` `sizes` `[` $sizes `]` "
        "`axes` custom<Ints>($axes) (`checked` custom<Ints>($checked)^)? `vector` custom<Int>($vector) "
        "`into` $buffer attr-dict `:` type($pointer) `,` type($buffer)"
    )

    def __init__(
        self,
        buffer: SSAValue,
        pointer: SSAValue,
        offsets: Sequence[SSAValue],
        strides: Sequence[SSAValue],
        sizes: Sequence[SSAValue],
        axes: Sequence[int],
        checked: Sequence[int],
        vector: int,
        engine: str,
    ):
        super().__init__(
            operands=[buffer, pointer, list(offsets), list(strides), list(sizes)],
            properties={
                "axes": ints(axes),
                "checked": ints(checked),
                "vector": number(vector),
                "engine": text(engine),
            },
        )

    def verify_(self) -> None:
        """Check the box and the engine's name."""
        _verify_box(self)
        if self.engine.data not in ("cp.async", "plain"):
            raise VerifyException(f"no copy engine is called {self.engine.data}")


@op_definition
class CommitOp(TesseraOp):
    """Closes a group of asynchronous copies."""

    name = "tessera_target.commit"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class WaitOp(TesseraOp):
    """Waits until at most `pending` groups of asynchronous copies are unfinished."""

    name = "tessera_target.wait"
    pending = prop_def(IntAttr)
    traits = traits_def(*effect(Effect.STATE))
    custom_directives = (Int,)
    assembly_format = "custom<Int>($pending) attr-dict"

    def __init__(self, pending: int):
        super().__init__(properties={"pending": number(pending)})


@op_definition
class BarrierOp(TesseraOp):
    """Waits for all threads of the group and orders their accesses to shared and global memory."""

    name = "tessera_target.barrier"
    traits = traits_def(*effect(Effect.STATE))
    assembly_format = "attr-dict"

    def __init__(self) -> None:
        super().__init__()


@op_definition
class LdmatrixOp(TesseraOp):
    """Loads an mma operand fragment from shared memory by `ldmatrix` (PTX ISA, "Warp-level matrix load").

    `transposed` uses the `.trans` form: the stored rows run along the fragment's other axis.
    """

    name = "tessera_target.ldmatrix"
    buffer = operand_def(BufferType)
    offsets = var_operand_def(index)
    transposed = prop_def(IntAttr)
    result = result_def(FragmentType)
    traits = traits_def(*effect(Effect.STATE, reads_only=True))
    custom_directives = (Int,)
    assembly_format = (
        "$buffer `[` $offsets `]` `transposed` custom<Int>($transposed) attr-dict `:` type($buffer) `->` type($result)"
    )

    def __init__(self, buffer: SSAValue, result: Attribute, transposed: bool, offsets: Sequence[SSAValue] = ()):
        super().__init__(
            operands=[buffer, list(offsets)],
            properties={"transposed": number(int(transposed))},
            result_types=[result],
        )
