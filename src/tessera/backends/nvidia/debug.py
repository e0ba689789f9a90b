"""Device print (`vprintf`) and assert (a message, then a trap) of NVIDIA GPUs."""

from __future__ import annotations

from tessera.backends.llvm import casts
from tessera.backends.llvm.ops import I32, I64
from tessera.backends.llvm.types import LLVMType
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.simt.memory import owned_registers
from tessera.ir.locations import location_of
from tessera.ir.target.debug import AssertOp, PrintOp
from tessera.ir.target.types import FragmentType, element_of
from tessera.ir.types import dtype_of
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType


def _promoted(emitter: NvidiaEmitter, unit: str, dtype: DType) -> tuple[LLVMType, str, str]:
    """Return a value as C's variadic calls pass it, with its conversion."""
    if dtype.is_float:
        return LLVMType("double"), casts.cast(emitter, unit, dtype, dtypes.f64, 1), "%g"
    if dtype.kind == "bool":
        return I64, emitter.ops.convert("zext", LLVMType("i1"), unit, I64), "%lld"
    return I64, casts.cast(emitter, unit, dtype, dtypes.i64, 1), "%llu" if dtype.kind == "uint" else "%lld"


def _printf(emitter: NvidiaEmitter, text: str, args: list[tuple[LLVMType, str]]) -> None:
    """Call `vprintf` with arguments in a local buffer of 8-byte slots (CUDA C++ Guide, "Formatted output")."""
    fn = emitter.fn
    emitter.module.declare("declare i32 @vprintf(ptr, ptr)")
    buffer = fn.entry_assign(f"alloca [{max(len(args), 1)} x i64], align 8")
    for number, (type_, value) in enumerate(args):
        slot = fn.assign(f"getelementptr i64, ptr {buffer}, i32 {number}")
        fn.line(f"store {type_} {value}, ptr {slot}, align 8")
    message = emitter.module.string(text, address_space=1)
    generic = fn.assign(f"addrspacecast ptr addrspace(1) {message} to ptr")
    fn.assign(f"call i32 @vprintf(ptr {generic}, ptr {buffer})")


@NVIDIA.register(PrintOp)
def emit_print(emitter: NvidiaEmitter, op: PrintOp) -> None:
    """Print once for scalars, once per element for fragments."""
    fragment = next((arg for arg in op.args if isinstance(arg.type, FragmentType)), None)
    registers, owner = owned_registers(emitter, fragment.type if fragment is not None else None)
    mask = emitter.units(op.mask) if op.mask is not None else None
    for register in registers:
        chosen = owner if mask is None else emitter.both(owner, mask[register])
        with emitter.some_threads(chosen, "print"):
            text, args = op.format.data.replace("%", "%%"), list[tuple[LLVMType, str]]()
            for arg in op.args:
                units = emitter.units(arg)
                unit = units[register] if isinstance(arg.type, FragmentType) else units[0]
                type_, value, conversion = _promoted(emitter, unit, dtype_of(element_of(arg.type)))
                args.append((type_, value))
                text = text.replace("{}", conversion, 1)
            _printf(emitter, text + "\n", args)


@NVIDIA.register(AssertOp)
def emit_assert(emitter: NvidiaEmitter, op: AssertOp) -> None:
    """Print the message with its source line and stop the launch when the condition is false anywhere."""
    fn = emitter.fn
    holds = emitter.units(op.condition)[0]
    for unit in emitter.units(op.condition)[1:]:
        holds = fn.assign(f"and i1 {holds}, {unit}")
    bad, good = fn.label("assert"), fn.label("assert.ok")
    fn.branch_if(holds, good, bad)
    fn.start(bad)
    where = location_of(op)
    place = f"{where}: " if where is not None else ""
    program = emitter.ops.convert("trunc", I64, emitter.program_id(), I32)
    wide = emitter.ops.convert("zext", I32, program, I64)
    _printf(
        emitter,
        f"{place}assertion failed: {op.message.data} (program %lld)\n".replace("%%", "%"),
        [(I64, wide)],
    )
    emitter.module.declare("declare void @llvm.trap()")
    fn.line("call void @llvm.trap()")
    fn.branch(good)
    fn.start(good)
