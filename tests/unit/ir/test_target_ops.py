"""What the verifiers of TIR-T refuse, and the types' derived facts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.dialects import test
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from tessera.ir.collect import new_context
from tessera.ir.target import arithmetic, memory, roles, stream, structure, warpgroup
from tessera.ir.target.types import BufferType, FragmentType, PointerType
from tessera.ir.types import element_type, index
from tessera.numerics import dtypes
from tessera.target.artifact import Parameter
from tests.unit.ir import samples
from tests.unit.ir.samples import BF16, F32, I64, layout


def value(type_: Attribute) -> SSAValue:
    return test.TestOp(result_types=[type_]).results[0]


def fragment(element: Attribute = F32) -> SSAValue:
    return value(FragmentType.of(element, layout()))


def load(**changed: list[int]) -> Operation:
    one = [value(index)]
    given = {"axes": [0], "checked": [0]} | changed
    return memory.LoadOp(value(PointerType.of(F32)), one, one, one, F32, **given)


def barriers(size: tuple[int, ...] = (4,), element: Attribute = I64, space: str = "shared") -> SSAValue:
    return value(BufferType.of(size, element, space))


def bulk_copy(coordinates: int) -> Operation:
    buffer, map_ = (
        value(BufferType.of([8, 64], BF16, "shared", "panels")),
        value(PointerType.of(BF16, "param")),
    )
    at = value(index)
    return roles.BulkCopyOp(buffer, map_, barriers(), at, [at] * coordinates, [64, 8])


def product(kind: FragmentType | None = None) -> warpgroup.TensorCoreStartOp:
    buffer, acc = value(BufferType.of([8, 8], BF16, "shared", "panels")), fragment()
    op = warpgroup.TensorCoreStartOp(buffer, buffer, acc, "wgmma")
    pending = warpgroup.PendingType(kind or acc.type)  # pyright: ignore[reportArgumentType]
    return type(op).create(operands=op.operands, properties=op.properties, result_types=[pending])


def product_wait(pending: int = 0, same_block: bool = True) -> Operation:
    start = product()
    wait = warpgroup.TensorCoreWaitOp(start.result, pending)
    Block([start, wait] if same_block else [wait])
    return wait


def slot_store(offset: int, size: int) -> Operation:
    return stream.SlotStoreOp(fragment(), value(PointerType.of(I64)), value(index), offset, size)


def slot_combine(offset: int, size: int, count: int = 1) -> Operation:
    return stream.SlotCombineOp("add", fragment(), value(PointerType.of(I64)), value(index), count, offset, size)


def slots_combine(offset: int, size: int, count: int = 1) -> Operation:
    place = (value(PointerType.of(I64)), value(index), value(index))
    return stream.SlotsCombineOp("add", fragment(), *place, count, offset, size)


def function_without_records() -> Operation:
    op = structure.FuncOp("f", [], [index], "[]")
    op.body.block.add_op(structure.ReturnOp())
    return op


def function(grid: str = "[]", warps: int = 4, kind: str = "size") -> Operation:
    op = structure.FuncOp("f", [Parameter("size", 0)], [index], grid, warps)
    op.params = ArrayAttr([DictionaryAttr({**op.params.data[0].data, "kind": StringAttr(kind)})])
    op.body.block.add_op(structure.ReturnOp())
    return op


@pytest.mark.parametrize(
    ("message", "build"),
    [
        ("not a grid expression", lambda: function('[[["size", 0], 4]]')),
        ("no pair", lambda: function('[["const", 4, 1]]')),
        ("a record of f is wrong", lambda: function("[")),
        ("kind is 'sise'", lambda: function(kind="sise")),
        ("one warp or more", lambda: function(warps=0)),
        ("differ in type", lambda: arithmetic.ElementwiseOp("add", [fragment(), fragment(BF16)])),
        ("of 1 operands", lambda: arithmetic.ElementwiseOp("add", [fragment()])),
        ("axis of the box", lambda: load(axes=[1])),
        ("axis of the box", lambda: load(checked=[2])),
        ("one record per parameter", function_without_records),
        ("one coordinate per dimension", lambda: bulk_copy(1)),
        ("at least one arrival", lambda: roles.MbarrierInitOp(barriers(), 0)),
        ("64-bit elements in shared", lambda: roles.MbarrierInitOp(barriers(element=F32), 1)),
        ("64-bit elements in shared", lambda: roles.MbarrierInitOp(barriers(space="scratch"), 1)),
        ("64-bit elements in shared", lambda: roles.MbarrierInitOp(barriers((2, 2)), 1)),
        ("not negative", lambda: roles.MbarrierExpectOp(barriers(), value(index), -16)),
        ("accumulators' type, pending", lambda: product(FragmentType.of(BF16, layout()))),
        ("its own block starts", lambda: product_wait(same_block=False)),
        ("not negative", lambda: product_wait(pending=-1)),
        ("the step of a turn", lambda: warpgroup.TurnOp("skip")),
        ("a slot holds the fragment", lambda: slot_store(8, 512)),
        ("a slot holds the fragment", lambda: slot_store(0, 240)),
        ("a slot holds the fragment", lambda: slot_combine(-16, 512)),
        ("from one slot or more", lambda: slot_combine(0, 512, count=0)),
        ("a slot holds the fragment", lambda: slots_combine(-16, 512)),
        ("from one slot or more", lambda: slots_combine(0, 512, count=0)),
    ],
)
def test_the_verifier_refuses(message: str, build: Callable[[], Operation]) -> None:
    op = build()
    with pytest.raises(VerifyException) as caught:
        op.verify()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("message", "build"),
    [
        ("no memory space", lambda: PointerType.of(F32, "moon")),
        ("not a permutation", lambda: BufferType.of([4, 4], F32, "shared", perm=[1, 1], pitch=4)),
        ("pitch", lambda: BufferType.of([4, 8], F32, "shared", pitch=4)),
        (
            "does not fit",
            lambda: FragmentType(BufferType.of([4], F32, "shared").dims, F32, fragment().type.layout),
        ),
    ],
)
def test_types_refuse(message: str, build: Callable[[], Attribute]) -> None:
    with pytest.raises(VerifyException, match=message):
        build()


def test_a_layout_that_is_none_is_a_parse_error() -> None:
    text = "#tessera_target.layout<register = [[4]], sizes = [4]>"  # coordinate 4 of an axis of size 4
    with pytest.raises(ParseError, match="outside"):
        Parser(new_context(), text).parse_attribute()


def test_the_text_of_roles_is_readable() -> None:
    text = str(samples.target_module())
    assert "tessera_target.roles registers [56, 240] groups 2 producer {" in text
    assert "tessera_target.mbarrier_expect %" in text
    assert "] bytes 2048 : !tessera_target.buffer<" in text
    assert "] box [64, 8] programs 1 axis 0 into %" in text


def test_a_transposed_padded_buffer_knows_its_strides() -> None:
    buffer = BufferType.of([8, 4], element_type(dtypes.bf16), "scratch", pitch=16, perm=[1, 0])
    assert buffer.stored_shape == (4, 8)
    assert buffer.strides == (1, 16)
    assert buffer.size_bytes == 4 * 16 * 2
