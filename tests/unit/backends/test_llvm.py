"""The shared LLVM text: names, declarations, constants, and control flow with fragments of several units."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.ir import Block

from tessera.backends.llvm.arithmetic import ARITHMETIC
from tessera.backends.llvm.control import CONTROL
from tessera.backends.llvm.emitter import Emitter, Handlers
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import LLVMType, float_literal, literal
from tessera.errors import CompilerFault
from tessera.ir.layouts import LinearLayout
from tessera.ir.target.arithmetic import ConstantOp, ElementwiseOp, SplatOp
from tessera.ir.target.memory import BarrierOp
from tessera.ir.target.types import FragmentType
from tessera.ir.types import element_type, index
from tessera.numerics import dtypes

F32 = element_type(dtypes.f32)
FOUR = LinearLayout.make({"register": [(1,), (2,)]}, (4,))


class Scalars(Emitter):
    """A model with one scalar per register, as GPUs have."""

    registries = (CONTROL, ARITHMETIC)

    def fragment_units(self, type_: FragmentType) -> tuple[int, int]:
        return type_.shape[0], 1


class Vectors(Scalars):
    """A model with one vector per fragment, as CPUs have."""

    def fragment_units(self, type_: FragmentType) -> tuple[int, int]:
        return 1, type_.shape[0]


def emitter(model: type[Emitter], profile: str = "fast") -> Emitter:
    return model(ModuleText(), FunctionText("define void @f(i64 %n)"), profile)


def finished(e: Emitter) -> str:
    e.fn.line("ret void")
    e.module.define("f", e.fn.render())
    text = e.module.render()
    llvm.parse_assembly(text).verify()
    return text


def loop_block(steps: int) -> Block:
    """A loop that doubles a fragment."""
    block = Block()
    bounds = [ConstantOp(value, index) for value in (0, steps, 1)]
    one = ConstantOp(1.5, F32)
    start = SplatOp(one.result, FOUR)
    body = Block(arg_types=[index, start.result.type])
    twice = ElementwiseOp("add", [body.args[1], body.args[1]])
    body.add_ops([twice, scf.YieldOp(twice.result)])
    loop = scf.ForOp(*(b.result for b in bounds), [start.result], body)
    after = ElementwiseOp("mul", [loop.results[0], loop.results[0]])
    block.add_ops([*bounds, one, start, loop, after])
    return block


@pytest.mark.parametrize(("model", "phis"), [(Scalars, 4), (Vectors, 1)])
def test_a_loop_carries_every_unit(model: type[Emitter], phis: int):
    e = emitter(model)
    e.emit_block(loop_block(3))
    text = finished(e)
    assert text.count("= phi float") + text.count("= phi <4 x float>") == phis
    assert "llvm.loop.unroll.disable" in text
    assert "icmp slt i64" in text


def test_contraction_is_allowed_only_by_the_fast_profile():
    for profile, expected in (("fast", True), ("deterministic", False), ("strict", False)):
        e = emitter(Vectors, profile)
        e.emit_block(loop_block(3))
        assert ("contract" in finished(e)) is expected


def test_a_branch_gives_its_results_by_phis():
    e = emitter(Vectors)
    block = Block()
    yes, a, b = ConstantOp(1, element_type(dtypes.boolean)), ConstantOp(1.0, F32), ConstantOp(2.0, F32)
    sides = [Block([scf.YieldOp(value.result)]) for value in (a, b)]
    branch = scf.IfOp(yes.result, [F32], [sides[0]], [sides[1]])
    block.add_ops([yes, a, b, branch, ElementwiseOp("neg", [branch.results[0]])])
    e.emit_block(block)
    assert "phi float [ 0x3FF0000000000000, %then" in finished(e)


def test_an_op_without_a_handler_is_a_compiler_fault():
    with pytest.raises(CompilerFault, match=r"Vectors cannot emit tessera_target\.barrier"):
        emitter(Vectors).emit_op(BarrierOp())


def test_a_models_own_handler_comes_first():
    own = Handlers()

    @own.register(ConstantOp)
    def emit(e: Emitter, op: ConstantOp) -> None:
        e.bind(op.result, ["%n"])

    class Model(Vectors):
        registries = (own, *Vectors.registries)

    e, op = emitter(Model), ConstantOp(7, index)
    e.emit_op(op)
    assert e.unit(op.result) == "%n"


def test_declarations_stand_once():
    module = ModuleText()
    module.declare("declare float @llvm.fabs.f32(float)", "declare float @llvm.fabs.f32(float) ")
    assert module.render().count("declare") == 1


def test_strings_are_shared_and_escaped():
    module = ModuleText()
    assert module.string('a"\n') == module.string('a"\n')
    assert 'c"a\\22\\0A\\00"' in module.render()


@pytest.mark.parametrize("value", [0.1, -0.0, float("inf"), float("nan"), 1e300, 1e-45, 65504.0])
@pytest.mark.parametrize("element", ["half", "bfloat", "float", "double"])
def test_float_literals_parse_exactly(element: str, value: float):
    bits = {"half": 16, "bfloat": 16, "float": 32, "double": 64}[element]
    dtype = {"half": dtypes.f16, "bfloat": dtypes.bf16, "float": dtypes.f32, "double": dtypes.f64}[element]
    if element == "half" and abs(value) == 1e300:
        value = 3.0
    text = f"define i{bits} @f() {{\n  ret i{bits} bitcast ({element} {float_literal(value, element)} to i{bits})\n}}"
    module = llvm.parse_assembly(text)
    module.verify()
    with np.errstate(over="ignore"):
        expected = int(np.array(value, dtype.numpy()).view(f"u{bits // 8}"))
    if not np.isnan(value):
        signed = expected - (1 << bits) if expected >> (bits - 1) else expected
        assert f"ret i{bits} {signed}" in str(module)


def test_literals_of_other_dtypes():
    assert literal(1, dtypes.boolean) == "true"
    assert literal(-3, dtypes.i8) == "-3"
    assert literal(448.0, dtypes.fp8_e4m3) == str(0x7E)


def test_vector_types_and_splats():
    type_ = LLVMType("float", 8)
    assert (str(type_), type_.mangled) == ("<8 x float>", "v8f32")
    assert type_.splat("0.0") == "splat (float 0.0)"
    assert LLVMType("i32").splat("3") == "3"


def test_scalars_are_computed_once_where_all_ways_lead_through():
    fn = FunctionText("define void @f(i64 %n)", once=True)
    first = fn.assign("mul i64 %n, 4")
    fn.branch_if("%c", "then", "else")
    fn.start("then")
    assert fn.assign("mul i64 %n, 4") == first
    inner = fn.assign("add i64 %n, 1")
    fn.branch("join")
    fn.start("else")
    assert fn.assign("add i64 %n, 1") != inner  # the other arm does not lead through it
    fn.branch("join")
    fn.start("join")
    assert fn.assign("mul i64 %n, 4") == first
    assert fn.assign("add i64 %n, 1") not in (inner, first)
    loaded = fn.assign("load i64, ptr %p")
    assert fn.assign("load i64, ptr %p") != loaded  # what is in memory may have changed


def test_scalars_of_a_loop_are_not_known_behind_what_leaves_it_earlier():
    fn = FunctionText("define void @f(i64 %n)", once=True)
    fn.branch("head")
    fn.start("head")
    at_head = fn.assign("mul i64 %n, 4")
    fn.branch_if("%c", "body", "exit")
    fn.start("body")
    inside = fn.assign("add i64 %n, 2")
    fn.branch("head")
    fn.start("exit")
    assert fn.assign("mul i64 %n, 4") == at_head
    assert fn.assign("add i64 %n, 2") != inside


def test_each_scalar_is_computed_anew_by_default():
    fn = FunctionText("define void @f(i64 %n)")
    assert fn.assign("mul i64 %n, 4") != fn.assign("mul i64 %n, 4")
