"""What the verifiers of TIR-T refuse, and the types' derived facts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.dialects import test
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from tessera.ir.collect import new_context
from tessera.ir.target import arithmetic, memory, structure
from tessera.ir.target.types import BufferType, FragmentType, PointerType
from tessera.ir.types import element_type, index
from tessera.numerics import dtypes
from tests.unit.ir.samples import BF16, F32, layout


def value(type_: Attribute) -> SSAValue:
    return test.TestOp(result_types=[type_]).results[0]


def fragment(element: Attribute = F32) -> SSAValue:
    return value(FragmentType.of(element, layout()))


def load(**changed: list[int]) -> Operation:
    one = [value(index)]
    given = {"axes": [0], "checked": [0]} | changed
    return memory.LoadOp(value(PointerType.of(F32)), one, one, one, F32, **given)


def function_without_records() -> Operation:
    op = structure.FuncOp("f", [], [index], "[]")
    op.body.block.add_op(structure.ReturnOp())
    return op


@pytest.mark.parametrize(
    ("message", "build"),
    [
        ("differ in type", lambda: arithmetic.ElementwiseOp("add", [fragment(), fragment(BF16)])),
        ("of 1 operands", lambda: arithmetic.ElementwiseOp("add", [fragment()])),
        ("axis of the box", lambda: load(axes=[1])),
        ("axis of the box", lambda: load(checked=[2])),
        ("one record per parameter", function_without_records),
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
        ("no permutation", lambda: BufferType.of([4, 4], F32, "shared", perm=[1, 1], pitch=4)),
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


def test_a_transposed_padded_buffer_knows_its_strides() -> None:
    buffer = BufferType.of([8, 4], element_type(dtypes.bf16), "scratch", pitch=16, perm=[1, 0])
    assert buffer.stored_shape == (4, 8)
    assert buffer.strides == (1, 16)
    assert buffer.size_bytes == 4 * 16 * 2
