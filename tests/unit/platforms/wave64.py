"""A platform in one file: AMD GPUs of 64 lanes (gfx90a) through LLVM, compiled only.

It shows what a new GPU takes: a record, the passes it wants, and an emitter with the few instructions that LLVM does
not spell alike for all GPUs. Source: LLVM "User Guide for AMDGPU Backend".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import llvmlite.binding as llvm

from tessera.backends.llvm.arithmetic import ARITHMETIC
from tessera.backends.llvm.code import CompiledCode
from tessera.backends.llvm.control import CONTROL
from tessera.backends.llvm.emitter import Handlers, load_handlers
from tessera.backends.llvm.ops import I16
from tessera.backends.llvm.text import FunctionText, ModuleText
from tessera.backends.llvm.types import LLVMType, memory_element
from tessera.backends.simt.emitter import SIMT, SimtEmitter
from tessera.backends.simt.placement import place_shared
from tessera.backends.simt.products import emit_emulated_product
from tessera.canonicalize.stages import CLEAN_UP
from tessera.ir.target.structure import FuncOp
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.lower.simt import lower_to_simt
from tessera.numerics.dtypes import BY_NAME
from tessera.platforms.platform import Platform
from tessera.schedule.gpu.warps import ChooseWarpsPass
from tessera.target.artifact import Parameter
from tessera.target.fragments import mma_instruction
from tessera.target.records import TargetRecord

GFX90A = TargetRecord(
    "gfx90a",
    "wave64",
    frozenset({"mfma_f16", "mfma_bf16"}),
    warp_size=64,
    shared_bytes=64 << 10,
    max_threads=1024,
    registers=131072,
    triple="amdgcn-amd-amdhsa",
    cpu="gfx90a",
)


class Wave64(Platform):
    """AMD GPUs of 64 lanes, compiled only."""

    name = "wave64"
    targets = ("gfx90a",)
    code_kinds = ("hsaco", "")
    texts = ("ll", "asm")

    def target(self, name: str) -> TargetRecord:
        return GFX90A

    def schedule(self, target: TargetRecord, knobs: Any) -> Any:
        return (ChooseWarpsPass(target, knobs), *CLEAN_UP)

    def lower(self, module: Any, target: TargetRecord) -> Any:
        return lower_to_simt(module, target)

    def generate(self, module: Any, target: TargetRecord, dump: Sequence[str]) -> CompiledCode:
        load_handlers("tessera.backends.simt")
        text = ModuleText(target.triple)
        functions = [op for op in module.ops if isinstance(op, FuncOp)]
        kernels = {func.sym_name.data: _emit(text, func, target) for func in functions}
        asm, code = _assembled(text.render(), target)
        return CompiledCode(code, "hsaco", {"asm": asm, "ll": text.render()}, {"kernels": kernels})


WAVE64 = Handlers()


class Wave64Emitter(SimtEmitter):
    """Writes one kernel."""

    registries: ClassVar[tuple[Handlers, ...]] = (WAVE64, SIMT, CONTROL, ARITHMETIC)

    def _call(self, key: str, type_: str, name: str, given: str = "") -> str:
        params = ", ".join(part.split()[0] for part in given.split(",")) if given else ""
        self.module.declare(f"declare {type_} @llvm.amdgcn.{name}({params})")
        return self.entry(key, f"call {type_} @llvm.amdgcn.{name}({given})")

    def lane(self) -> str:
        return self.entry("lane", f"and i32 {self._call('thread', 'i32', 'workitem.id.x')}, 63")

    def warp(self) -> str:
        raw = self.entry("warp.raw", f"lshr i32 {self._call('thread', 'i32', 'workitem.id.x')}, 6")
        self.module.declare("declare i32 @llvm.amdgcn.readfirstlane.i32(i32)")
        return self.entry("warp", f"call i32 @llvm.amdgcn.readfirstlane.i32(i32 {raw})")

    def program_id(self) -> str:
        return self.entry("program", f"zext i32 {self._call('group', 'i32', 'workgroup.id.x')} to i64")

    def shared_pointer(self, offset: str) -> str:
        return self.fn.assign(f"getelementptr i8, ptr addrspace(3) @shared, i32 {offset}")

    def load_words(
        self, pointer: str, words: Sequence[LLVMType], predicate: str | None, otherwise: Sequence[str] | None = None
    ) -> list[str]:
        vector = LLVMType(words[0].element, len(words))
        mask = self._mask(len(words), predicate)
        name = f"llvm.masked.load.v{len(words)}{words[0].element}.p1"
        kind = f"<{len(words)} x {words[0].element}>"
        self.module.declare(f"declare {kind} @{name}(ptr addrspace(1), <{len(words)} x i1>, {kind})")
        rest = "zeroinitializer"
        if otherwise:
            rest = "poison"
            for place, word in enumerate(otherwise):
                rest = self.fn.assign(f"insertelement {kind} {rest}, {words[place].element} {word}, i32 {place}")
        value = self.fn.assign(
            f"call {kind} @{name}(ptr addrspace(1) align {_align(words)} {pointer}, {mask}, {kind} {rest})"
        )
        if len(words) == 1:
            return [self.fn.assign(f"extractelement {kind} {value}, i32 0")]
        return [self.ops.extract(vector, value, place) for place in range(len(words))]

    def store_words(self, pointer: str, words: Sequence[tuple[LLVMType, str]], predicate: str | None) -> None:
        types = [type_ for type_, _ in words]
        kind = f"<{len(words)} x {types[0].element}>"
        value = "poison"
        for place, (type_, word) in enumerate(words):
            value = self.fn.assign(f"insertelement {kind} {value}, {type_.element} {word}, i32 {place}")
        name = f"llvm.masked.store.v{len(words)}{types[0].element}.p1"
        self.module.declare(f"declare void @{name}({kind}, ptr addrspace(1), <{len(words)} x i1>)")
        mask = self._mask(len(words), predicate)
        self.fn.line(f"call void @{name}({kind} {value}, ptr addrspace(1) align {_align(types)} {pointer}, {mask})")

    def _mask(self, count: int, predicate: str | None) -> str:
        kind = f"<{count} x i1>"
        if predicate is None:
            return f"{kind} splat (i1 true)"
        first = self.fn.assign(f"insertelement {kind} poison, i1 {predicate}, i32 0")
        return f"{kind} " + self.fn.assign(
            f"shufflevector {kind} {first}, {kind} poison, <{count} x i32> zeroinitializer"
        )

    def shuffle_xor(self, value: str, mask: int | str) -> str:
        self.module.declare("declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)")
        other = self.ops.binary("xor", LLVMType("i32"), self.lane(), str(mask))
        place = self.ops.binary("shl", LLVMType("i32"), other, "2")
        return self.fn.assign(f"call i32 @llvm.amdgcn.ds.bpermute(i32 {place}, i32 {value})")

    def barrier(self) -> None:
        self.module.declare("declare void @llvm.amdgcn.s.barrier()")
        self.fn.line('fence syncscope("workgroup") seq_cst')
        self.fn.line("call void @llvm.amdgcn.s.barrier()")
        self.fn.line('fence syncscope("workgroup") seq_cst')

    def native_narrow(self, dtype: Any) -> str | None:
        return "half" if dtype.name == "f16" else None


_MFMA = {
    "mfma_32x32x8_f16_f16_f32": "32x32x8f16",
    "mfma_16x16x16_f16_f16_f32": "16x16x16f16",
    "mfma_32x32x8_bf16_bf16_f32": "32x32x8bf16.1k",
    "mfma_16x16x16_bf16_bf16_f32": "16x16x16bf16.1k",
}


@WAVE64.register(TensorCoreOp)
def emit_product(emitter: Wave64Emitter, op: TensorCoreOp) -> None:
    """Emit one instruction for each part of the tile; products of other types are multiply-adds."""
    name = op.instruction.data
    if name not in _MFMA:
        emit_emulated_product(emitter, op)
        return
    instruction = mma_instruction(name)
    per_a, per_b, per_c = (part.elements for part in (instruction.a, instruction.b, instruction.c))
    element = "half" if instruction.a_dtype == "f16" else "i16"
    given, sums = f"<{per_a} x {element}>", f"<{per_c} x float>"
    function = f"llvm.amdgcn.mfma.f32.{_MFMA[name]}"
    emitter.module.declare(f"declare {sums} @{function}({given}, {given}, {sums}, i32, i32, i32)")
    a, b, acc = (emitter.units(value) for value in (op.a, op.b, op.acc))
    if element == "i16":
        bfloat = LLVMType("bfloat")
        a, b = ([emitter.ops.convert("bitcast", bfloat, x, I16) for x in units] for units in (a, b))
    columns = len(b) // per_b
    results: list[str] = []
    for place in range(len(acc) // per_c):
        row, column = divmod(place, columns)
        left = _vector(emitter, given, element, a[row * per_a : (row + 1) * per_a])
        right = _vector(emitter, given, element, b[column * per_b : (column + 1) * per_b])
        total = _vector(emitter, sums, "float", acc[place * per_c : (place + 1) * per_c])
        value = emitter.fn.assign(
            f"call {sums} @{function}({given} {left}, {given} {right}, {sums} {total}, i32 0, i32 0, i32 0)"
        )
        results += [emitter.fn.assign(f"extractelement {sums} {value}, i32 {i}") for i in range(per_c)]
    assert op.result is not None
    emitter.bind(op.result, results)


def _vector(emitter: Wave64Emitter, kind: str, element: str, values: Sequence[str]) -> str:
    text = "poison"
    for place, value in enumerate(values):
        text = emitter.fn.assign(f"insertelement {kind} {text}, {element} {value}, i32 {place}")
    return text


def _align(words: Sequence[LLVMType]) -> int:
    return int(words[0].element[1:]) // 8 * len(words)


def _emit(text: ModuleText, func: FuncOp, target: TargetRecord) -> dict[str, Any]:
    shared, _ = place_shared(func)
    text.add_global("shared", f"internal addrspace(3) global [{max(shared, 1)} x i8] poison, align 1024")
    threads = func.num_warps.data * target.warp_size
    group = text.attributes(f'nounwind "amdgpu-flat-work-group-size"="{threads},{threads}"')
    params = ", ".join(_parameter(record, number) for number, record in enumerate(func.parameters))
    fn = FunctionText(f"define amdgpu_kernel void @{func.sym_name.data}({params}) {group}")
    emitter = Wave64Emitter(text, fn, func.profile.data, func.num_warps.data)
    for number, arg in enumerate(func.body.block.args):
        emitter.bind(arg, [f"%p{number}"])
    emitter.emit_block(func.body.block)
    text.define(func.sym_name.data, fn.render())
    return {"threads": threads, "shared_bytes": shared}


def _parameter(record: Parameter, number: int) -> str:
    if record.kind == "pointer":
        return f"ptr addrspace(1) align {max(record.align, 1)} %p{number}"
    type_ = "i64" if record.kind in ("size", "stride") else memory_element(BY_NAME[record.dtype])
    return f"{type_} %p{number}"


@cache
def _machine() -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(GFX90A.triple).create_target_machine(cpu=GFX90A.cpu, opt=3, reloc="pic")


def _assembled(text: str, target: TargetRecord) -> tuple[str, bytes]:
    machine = _machine()
    module = llvm.parse_assembly(text)
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    copy = llvm.parse_assembly(str(module))
    return machine.emit_assembly(module), machine.emit_object(copy)
