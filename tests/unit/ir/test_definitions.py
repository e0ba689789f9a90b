"""Ops' assembly formats: read at first use, and all of them right; what fits is what xDSL's verifier accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, Float32Type, Float64Type, IntAttr, ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Block, Operation
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import FormatProgram
from xdsl.irdl.operations import get_accessors_from_op_def
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from tessera.ir.definitions import TesseraOp, op_definition
from tessera.ir.fitting import fits
from tessera.ir.target import target_dialect
from tessera.ir.tile import tile_dialect
from tessera.ir.tile.elementwise import ConstantOp
from tessera.ir.tile.structure import KernelOp
from tests.unit.ir import samples

FORMATTED = [
    op
    for dialect in (tile_dialect(), target_dialect())
    for op in dialect.operations
    if issubclass(op, IRDLOperation) and op.get_irdl_definition().assembly_format is not None
]


@pytest.mark.parametrize("op", FORMATTED, ids=lambda op: op.name)
def test_every_format_is_right(op: type[IRDLOperation]) -> None:
    definition = op.get_irdl_definition()
    assert definition.assembly_format is not None
    assert FormatProgram.from_str(definition.assembly_format, definition).stmts


def test_a_format_is_read_when_the_op_is() -> None:
    @op_definition
    class Wrong(IRDLOperation):
        name = "test.wrong"
        assembly_format = "$nothing attr-dict"

    context = Context()
    context.load_dialect(Builtin)
    context.load_op(Wrong)
    with pytest.raises(ParseError, match="nothing"):
        Parser(context, "test.wrong").parse_op()


def _variants(op: Operation) -> Iterator[Operation]:
    """Yield copies of an op, most of them with one mistake."""
    yield op.clone()
    for at in range(len(op.operands)):
        fewer, wrong = op.clone(), op.clone()
        fewer.operands = [*op.operands[:at], *op.operands[at + 1 :]]
        wrong.operands[at] = ConstantOp(1.0, Float64Type()).result
        yield from (fewer, wrong)
    more = op.clone()
    more.operands = [*op.operands, *op.operands[:1]]
    yield more
    for types in ([], [Float32Type()], [*op.result_types, Float32Type()]):
        regions = [region.clone() for region in op.regions]
        yield type(op).create(operands=op.operands, result_types=types, properties=op.properties, regions=regions)
    if op.regions:
        two, none = op.clone(), op.clone()
        two.regions[0].add_block(Block())
        none.detach_region(0)
        yield from (two, none)
    for name in [*op.properties, "unknown"]:
        for value in (None, UnitAttr(), IntAttr(1), StringAttr("x")):
            other = op.clone()
            other.properties.pop(name, None)
            if value is not None:
                other.properties[name] = value
            yield other


def _accepted(op: Operation) -> bool:
    try:
        type(op).get_irdl_definition().verify(op)
    except VerifyException:
        return False
    return True


SAMPLES = pytest.mark.parametrize("sample", [samples.tile_module, samples.target_module], ids=["tile", "target"])


@SAMPLES
def test_an_op_fits_where_the_verifier_accepts_it(sample: Callable[[], ModuleOp]) -> None:
    answers: Counter[bool] = Counter()
    for op in sample().walk():
        if not isinstance(op, TesseraOp):
            continue
        check = fits(op.get_irdl_definition())
        assert check is not None, f"{op.name} is left to xDSL"
        for variant in _variants(op):
            answer = check(variant)
            assert answer == _accepted(variant), variant
            answers[answer] += 1
    assert min(answers[True], answers[False]) > 100


@SAMPLES
def test_parts_of_an_op_are_read_as_xdsl_reads_them(sample: Callable[[], ModuleOp]) -> None:
    for op in sample().walk():
        if isinstance(op, TesseraOp):
            definition = op.get_irdl_definition()
            accessors = get_accessors_from_op_def(definition, None)
            for name, _ in (*definition.operands, *definition.results, *definition.regions):
                read = getattr(op, name)
                assert type(read) is type(accessors[name].__get__(op))
                assert read == accessors[name].__get__(op)


def test_an_isolated_op_takes_only_what_is_made_inside() -> None:
    kernel = next(op for op in samples.tile_module().walk() if isinstance(op, KernelOp))
    check = fits(kernel.get_irdl_definition())
    assert check is not None
    assert check(kernel)
    user = next(op for op in kernel.walk() if op.operands)
    user.operands[0] = ConstantOp(1.0, Float64Type()).result
    assert not check(kernel)
    assert not _accepted(kernel)
