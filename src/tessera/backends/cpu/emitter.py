"""The vector model: TIR-T functions for CPUs as LLVM IR, one vector per chunk.

The entry point is `void entry(void** params, i64 first, i64 last)` (see `target.artifact.Launch`): it runs
the programs first to last-1 one after the other. After the parameters, `params` holds the address of the
worker's scratch memory and that of the error word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue

from tessera.backends.llvm import narrow as narrow_floats
from tessera.backends.llvm.arithmetic import ARITHMETIC
from tessera.backends.llvm.control import CONTROL
from tessera.backends.llvm.emitter import Emitter, Handlers
from tessera.backends.llvm.ops import I64, Ops
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import LLVMType, of_dtype
from tessera.backends.llvm.vecmath import vecmath_function
from tessera.data import dataclass
from tessera.ir.locations import location_of
from tessera.ir.target.debug import AssertOp
from tessera.ir.target.memory import LoadOp, StoreOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.target.types import FragmentType, PointerType
from tessera.ir.types import dtype_of
from tessera.ir.walking import ops_inside
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType
from tessera.target.records import TargetRecord

CPU = Handlers()
MOST_ADDRESSES = 128
"""Loads and stores of a program from which on LLVM is not told how their addresses follow from those of the one before.

It would look at all pairs of them for addresses that are made from others (loop strength reduction).
"""
"""Handlers of the ops that the vector model emits its own way; filled by the files of this folder."""

NATIVE_F16 = frozenset({"f16c", "neon"})


def widened(ops: Ops, target: TargetRecord, value: str, dtype: DType, width: int) -> str:
    """Append the f32 value of a narrow float, by the f16 instructions where there are some."""
    if not target.features & NATIVE_F16 or dtype not in (dtypes.f16, dtypes.fp8_e5m2, dtypes.fp8_e4m3):
        return narrow_floats.widen(ops, value, dtype, width)
    half, f32 = LLVMType("half", width), of_dtype(dtypes.f32, width)
    code = value if dtype == dtypes.f16 else _half_of(ops, value, dtype, width)
    value = ops.convert("fpext", half, ops.convert("bitcast", LLVMType("i16", width), code, half), f32)
    return value if dtype != dtypes.fp8_e4m3 else ops.fn.assign(f"fmul {f32} {value}, {ops.real(f32, 256.0)}")


def _half_of(ops: Ops, code: str, dtype: DType, width: int) -> str:
    """Return the bits of f16 for those of a float of 8 bits: of `fp8_e4m3`, whose exponents are fewer, a 256th of it.

    f16 has all subnormals of both as normal numbers or its own, which its instructions take without delay.
    """
    i16 = LLVMType("i16", width)
    wide = ops.convert("zext", LLVMType("i8", width), code, i16)
    high = ops.binary("shl", i16, wide, ops.integer(i16, 8))
    if dtype == dtypes.fp8_e5m2:
        return high
    sign = ops.binary("and", i16, high, ops.integer(i16, -0x8000))
    magnitude = ops.binary("and", i16, ops.binary("shl", i16, wide, ops.integer(i16, 7)), ops.integer(i16, 0x3F80))
    # The only NaN is the largest code: one more than it has the exponent's upper bit, which makes f16's a NaN, too.
    nan = ops.binary("and", i16, ops.binary("add", i16, magnitude, ops.integer(i16, 0x80)), ops.integer(i16, 0x4000))
    return ops.binary("or", i16, ops.binary("or", i16, magnitude, nan), sign)


@dataclass
class AssertTable:
    """The assertions of a module: the error word is 1 + a position in `records`."""

    records: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def number(self, op: AssertOp) -> int:
        """Return what a failing assertion writes to the error word."""
        location = location_of(op)
        record = {"message": op.message.data, "location": "" if location is None else str(location)}
        if record not in self.records:
            self.records.append(record)
        return self.records.index(record) + 1


class CpuEmitter(Emitter):
    """Writes one TIR-T function.

    Args:
        module: the module being written.
        func: the function.
        target: the CPU.
        asserts: collects the module's assertions.
    """

    registries: ClassVar[tuple[Handlers, ...]] = (CPU, CONTROL, ARITHMETIC)

    def __init__(self, module: ModuleText, func: FuncOp, target: TargetRecord, asserts: AssertTable):
        name = func.sym_name.data
        attributes = module.attributes("nounwind")
        signature = f"define void @{name}(ptr noalias %params, i64 %first, i64 %last) {attributes}"
        super().__init__(module, FunctionText(signature, once=True), func.profile.data)
        self.func = func
        self.target = target
        self.asserts = asserts
        self.scratch = "null"
        self.error = "null"
        self.program = "0"
        self.streams = False
        self._is_x86 = target.triple.startswith("x86_64")
        self.asm_clobbers = ("~{dirflag}", "~{fpsr}", "~{flags}") if self._is_x86 else ("~{cc}",)
        self._spare: str | None = None

    def spare(self) -> str:
        """Return the address of an element that lanes read and write instead of what they are to leave alone."""
        if self._spare is None:
            self._spare = self.fn.entry_assign("alloca i64, align 8")
        return self._spare

    def emit(self) -> None:
        """Write the whole function into the module."""
        fn = self.fn
        self._load_parameters()
        head, body, done = fn.label("program.head"), fn.label("program"), fn.label("done")
        entry = fn.block
        fn.branch(head)
        fn.start(head)
        place = fn.reserve()
        self.program = fn.fresh("pid")
        fn.branch_if(self.ops.compare("slt", I64, self.program, "%last"), body, done)
        fn.start(body)
        counter = self.program
        if self._accesses() > MOST_ADDRESSES:
            self.program = self._apart(counter)
        self.emit_block(self.func.body.block)
        following = fn.assign(f"add nsw i64 {counter}, 1")
        phi = f"phi i64 [ %first, %{entry} ], [ {following}, %{fn.block} ]"
        fn.fill(place, f"{counter} = {phi}")
        fn.branch(head, f", !llvm.loop {self.module.loop()}")
        fn.start(done)
        if self.streams:
            # Stores past the caches are not ordered with the one that tells the caller that we are done.
            self.module.declare("declare void @llvm.x86.sse.sfence()")
            fn.line("call void @llvm.x86.sse.sfence()")
        fn.line("ret void")
        self.module.define(self.func.sym_name.data, fn.render())

    def _accesses(self) -> int:
        return sum(isinstance(op, LoadOp | StoreOp) for op in ops_inside(self.func.body))

    def _apart(self, counter: str) -> str:
        """Return a number as LLVM knows nothing of, by way of no instruction."""
        attributes = self.module.attributes("nounwind memory(none)")
        return self.fn.assign(f'call i64 asm "", "=r,0"(i64 {counter}) {attributes}')

    def _load_parameters(self) -> None:
        for position, arg in enumerate(self.func.body.block.args):
            slot = self._slot(position)
            if isinstance(arg.type, PointerType):
                self.bind(arg, [self.fn.assign(f"load ptr, ptr {slot}")])
                continue
            dtype = dtype_of(arg.type)
            memory = self.memory_type(dtype, 1)
            value = self.fn.assign(f"load {memory}, ptr {slot}")
            self.bind(arg, [self.from_memory(value, dtype, 1)])
        count = len(self.func.body.block.args)
        self.scratch, self.error = self._slot(count), self._slot(count + 1)

    def _slot(self, position: int) -> str:
        address = self.ops.gep("ptr", "%params", str(position))
        return self.fn.assign(f"load ptr, ptr {address}")

    # The model

    def fragment_units(self, type_: FragmentType) -> tuple[int, int]:
        """A chunk is one vector."""
        (width,) = type_.shape
        return 1, width

    def asm_register(self, dtype: DType) -> tuple[str, LLVMType]:
        """Floats of 32 and 64 bits are in vector registers, all else in general ones."""
        if dtype.is_float and dtype.bits >= 32:
            return "x" if self._is_x86 else "w", of_dtype(dtype)
        return "r", LLVMType(f"i{dtype.bits}")

    def math_call(self, name: str, dtype: DType, width: int, args: Sequence[str]) -> str:
        """Call the vector function; a reciprocal square root is composed."""
        ops, type_ = self.ops, of_dtype(dtype, width)
        if name == "rsqrt":
            return self.fn.assign(f"fdiv {type_} {ops.real(type_, 1.0)}, {ops.intrinsic('sqrt', type_, *args)}")
        features = self.target.features
        function = vecmath_function(name, width, dtype.name, self.profile == "fast", features)
        self.module.declare(*function.declares)
        self.module.define(function.name, function.definition)
        given = ", ".join(f"{type_} {arg}" for arg in args)
        return self.fn.assign(f"call {type_} @{function.name}({given})")

    def value_type(self, dtype: DType, width: int = 1) -> LLVMType:
        """Keep 16-bit floats as integers: CPUs that lack them would go through libcalls even to move them."""
        return LLVMType("i16", width) if dtype.is_float and dtype.bits == 16 else of_dtype(dtype, width)

    def literal(self, value: int | float, dtype: DType) -> str:
        """Return a constant; for a 16-bit float, its bits."""
        if dtype.is_float and dtype.bits == 16:
            return str(int(np.array(value, dtype=dtype.numpy()).view(np.uint16)))
        return super().literal(value, dtype)

    def widen(self, value: str, dtype: DType, width: int) -> str:
        """Use the f16 instructions where there are some."""
        return widened(self.ops, self.target, value, dtype, width)

    def narrow(self, value: str, dtype: DType, width: int, saturate: bool = False) -> str:
        """Use the f16 instructions where there are some."""
        if dtype == dtypes.f16 and not saturate and self.target.features & NATIVE_F16:
            half = LLVMType("half", width)
            value = self.ops.convert("fptrunc", of_dtype(dtypes.f32, width), value, half)
            return self.ops.convert("bitcast", half, value, self.value_type(dtype, width))
        registers = width % 16 == 0 and {"avx512f", "avx512dq", "avx512bf16"} <= self.target.features
        if dtype == dtypes.bf16 and not saturate and registers:
            return self._narrow_bf16(value, width)
        return narrow_floats.narrow(self.ops, value, dtype, width, saturate)

    def _narrow_bf16(self, value: str, width: int) -> str:
        """Use `vcvtneps2bf16`, except for chunks with subnormals, which it takes for zeros."""
        fn, ops, f32 = self.fn, self.ops, of_dtype(dtypes.f32, width)
        brain, result = LLVMType("bfloat", width), self.value_type(dtypes.bf16, width)
        one, bools, subnormal = LLVMType("float", 16), LLVMType("i1", 16), 0x20
        self.module.declare(f"declare {bools} @llvm.x86.avx512.fpclass.ps.512({one}, i32 immarg)")
        some: list[str] = []
        for first in range(0, width, 16):
            mask = ", ".join(f"i32 {first + lane}" for lane in range(16))
            part = fn.assign(f"shufflevector {f32} {value}, {f32} poison, <16 x i32> <{mask}>")
            some.append(fn.assign(f"call {bools} @llvm.x86.avx512.fpclass.ps.512({one} {part}, i32 {subnormal})"))
        any_ = some[0]
        for other in some[1:]:
            any_ = ops.binary("or", bools, any_, other)
        found = ops.compare("ne", LLVMType("i16"), fn.assign(f"bitcast {bools} {any_} to i16"), "0")
        rare, usual, join = fn.label("subnormal"), fn.label("usual"), fn.label("rounded")
        fn.branch_if(found, rare, usual)
        fn.start(rare)
        slow = narrow_floats.narrow(ops, value, dtypes.bf16, width)
        fn.branch(join)
        fn.start(usual)
        fast = ops.convert("bitcast", brain, ops.convert("fptrunc", f32, value, brain), result)
        fn.branch(join)
        fn.start(join)
        return fn.phi(str(result), [(slow, rare), (fast, usual)])

    # Memory representation: bool is a byte

    def memory_type(self, dtype: DType, width: int) -> LLVMType:
        """Return the LLVM type of `width` elements in memory."""
        return LLVMType("i8", width) if dtype.kind == "bool" else self.value_type(dtype, width)

    def from_memory(self, value: str, dtype: DType, width: int) -> str:
        """Return loaded elements as a value."""
        if dtype.kind != "bool":
            return value
        type_ = self.memory_type(dtype, width)
        return self.ops.compare("ne", type_, value, self.ops.integer(type_, 0))

    def to_memory(self, value: str, dtype: DType, width: int) -> str:
        """Return a value as it is stored."""
        if dtype.kind != "bool":
            return value
        return self.ops.convert("zext", LLVMType("i1", width), value, self.memory_type(dtype, width))

    # Index arithmetic on text, folded where operands are literals

    def mul(self, a: str, b: str) -> str:
        """Return the product of two i64."""
        if "0" in (a, b):
            return "0"
        if a == "1" or b == "1":
            return b if a == "1" else a
        return self.fn.assign(f"mul nsw i64 {a}, {b}")

    def add(self, a: str, b: str) -> str:
        """Return the sum of two i64."""
        if a == "0" or b == "0":
            return b if a == "0" else a
        return self.fn.assign(f"add nsw i64 {a}, {b}")

    def dot(self, offsets: Sequence[str], strides: Sequence[str]) -> str:
        """Return the element offset of a place in a strided array."""
        total = "0"
        for offset, stride in zip(offsets, strides, strict=True):
            total = self.add(total, self.mul(offset, stride))
        return total

    def iota(self, type_: LLVMType) -> str:
        """Return 0, 1, … in the lanes of an integer vector."""
        if type_.width == 1:
            return "0"
        return "<" + ", ".join(f"{type_.element} {lane}" for lane in range(type_.width)) + ">"

    def all_units(self, values: Sequence[SSAValue]) -> list[str]:
        """Return the only unit of each value."""
        return [self.unit(value) for value in values]
