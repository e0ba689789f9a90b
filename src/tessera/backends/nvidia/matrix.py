"""Matrix instructions and shared-memory matrix loads of NVIDIA GPUs."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from tessera.backends.llvm.ops import F32, I32
from tessera.backends.llvm.types import LLVMType
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.nvidia.mnemonics import mma_mnemonic
from tessera.backends.simt.memory import SharedAddresses, embedded, emit_buffer_store
from tessera.backends.simt.products import emit_emulated_product
from tessera.errors import CompilerFault
from tessera.ir.layouts import REGISTER, ldmatrix
from tessera.ir.target.arithmetic import constant_value
from tessera.ir.target.memory import BufferStoreOp, LdmatrixOp
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import BufferType, FragmentType
from tessera.numerics.dtypes import DType
from tessera.target.fragments import Fragment, mma_instruction

_CONSTRAINT = {"float": "f", "double": "d", "i32": "r"}


@NVIDIA.register(LdmatrixOp)
def emit_ldmatrix(emitter: NvidiaEmitter, op: LdmatrixOp) -> None:
    """Emit `ldmatrix` instructions; the words they give stay packed for the matrix instruction."""
    buffer, type_ = op.buffer.type, op.result.type
    assert isinstance(buffer, BufferType)
    assert isinstance(type_, FragmentType)
    dtype = buffer.dtype
    plan = ldmatrix(embedded(type_.linear, buffer.shape, [0, 1]), buffer.shared_layout(), dtype.bytes)
    if plan is None:
        raise CompilerFault("ldmatrix cannot load this fragment")
    offsets = [constant_value(offset) or 0 for offset in op.offsets]
    addresses = SharedAddresses(emitter, buffer, emitter.unit(op.buffer), plan.addresses, [int(o) for o in offsets])
    form = f"ldmatrix.sync.aligned.m8n8.x{plan.matrices}{'.trans' if plan.trans else ''}.shared.b16"
    outputs = ", ".join(f"${i}" for i in range(plan.matrices))
    text = f"{form} {{{outputs}}}, [${plan.matrices}];"
    constraints = ",".join([*["=r"] * plan.matrices, "r", "~{memory}"])
    words: list[str] = []
    for instruction in range(plan.addresses.in_size(REGISTER)):
        element = plan.addresses.apply(register=instruction)[0]
        address = emitter.shared_address(addresses.offset(element))
        words += emitter.asm(text, constraints, [I32] * plan.matrices, [("i32", address)])
    emitter.words[op.result] = words
    per_word = 4 // dtype.bytes
    emitter.bind(op.result, [u for w in words for u in emitter.unpack([w], dtype, per_word)])


@NVIDIA.register(BufferStoreOp)
def emit_matrix_store(emitter: NvidiaEmitter, op: BufferStoreOp) -> None:
    """Store a fragment, by `stmatrix` where its registers are those of 8x8 matrices of 16-bit elements."""
    buffer, type_ = op.buffer.type, op.value.type
    assert isinstance(buffer, BufferType)
    assert isinstance(type_, FragmentType)
    plan = None
    if emitter.target.has("stmatrix") and type_.dtype.bytes == 2 and not len(op.offsets):
        axes: list[int] = [axis.data for axis in op.axes.data]
        layout = embedded(type_.linear, buffer.shape, axes)
        plan = ldmatrix(layout, buffer.shared_layout(), 2) if layout.is_injective else None
    if plan is None:
        emit_buffer_store(emitter, op)
        return
    addresses = SharedAddresses(emitter, buffer, emitter.unit(op.buffer), plan.addresses, [0] * len(buffer.shape))
    form = f"stmatrix.sync.aligned.m8n8.x{plan.matrices}{'.trans' if plan.trans else ''}.shared.b16"
    text = f"{form} [$0], {{{', '.join(f'${1 + i}' for i in range(plan.matrices))}}};"
    constraints = ",".join(["r", *["r"] * plan.matrices, "~{memory}"])
    words = emitter.pack(emitter.units(op.value), type_.dtype)
    for instruction in range(plan.addresses.in_size(REGISTER)):
        address = emitter.shared_address(addresses.offset(plan.addresses.apply(register=instruction)[0]))
        given = words[instruction * plan.matrices : (instruction + 1) * plan.matrices]
        emitter.asm(text, constraints, [], [("i32", address), *((str(t), w) for t, w in given)])


def operand_words(
    emitter: NvidiaEmitter, op: Operation, value: SSAValue, fragment: Fragment, tf32: bool
) -> list[tuple[str, str]]:
    """Return registers of a product's operand as the instruction takes them: LLVM type and value."""
    assert isinstance(value.type, FragmentType)
    dtype, there = value.type.dtype, (value, op.parent)
    known = emitter.words.get(value) or emitter.words_in.get(there)
    if known is not None and not tf32:
        return [("i32", word) for word in known]
    units = emitter.units(value)
    if dtype.name == "f64":
        return [("double", unit) for unit in units]
    if tf32:
        return [("i32", _round_tf32(emitter, unit)) for unit in units]
    per_word = fragment.packing
    words = [emitter.pack(units[i : i + per_word], dtype)[0][1] for i in range(0, len(units), per_word)]
    # Packed in a branch, they are not there behind it.
    owner = value.owner if isinstance(value.owner, Block) else value.owner.parent
    if owner is op.parent:
        emitter.words[value] = words
    else:
        emitter.words_in[there] = words
    return [("i32", word) for word in words]


def _round_tf32(emitter: NvidiaEmitter, unit: str) -> str:
    (bits,) = emitter.asm("cvt.rna.tf32.f32 $0, $1;", "=r,f", [I32], [("float", unit)], pure=True)
    return bits


def _accumulator_type(dtype: DType) -> LLVMType:
    return {"f32": F32, "f64": LLVMType("double"), "i32": I32}.get(dtype.name, I32)


@NVIDIA.register(TensorCoreOp)
def emit_tensor_core(emitter: NvidiaEmitter, op: TensorCoreOp) -> None:
    """Emit one `mma.sync` per pair of instruction operands of the tile."""
    if op.instruction.data == "fma":
        emit_emulated_product(emitter, op)
        return
    if op.instruction.data.startswith("wgmma_"):
        from tessera.backends.nvidia.hopper import emit_warpgroup_product

        emit_warpgroup_product(emitter, op)
        return
    instruction = mma_instruction(op.instruction.data)
    assert op.result is not None
    assert isinstance(op.acc.type, FragmentType)
    tf32 = instruction.a_dtype == "tf32"
    a = operand_words(emitter, op, op.a, instruction.a, tf32)
    b = operand_words(emitter, op, op.b, instruction.b, tf32)
    dtype = op.acc.type.dtype
    acc_type = _accumulator_type(dtype)
    packed = instruction.c.packing > 1
    acc = [w for _, w in operand_words(emitter, op, op.acc, instruction.c, False)] if packed else emitter.units(op.acc)
    per_a, per_b, per_c = instruction.registers
    columns = len(b) // per_b
    text, constraints = _assembly(mma_mnemonic(instruction), per_a, per_b, per_c, acc_type, a[0][0], b[0][0])
    results: list[str] = []
    for row in range(len(a) // per_a):
        for column in range(columns):
            at = (row * columns + column) * per_c
            args = [
                *a[row * per_a : (row + 1) * per_a],
                *b[column * per_b : (column + 1) * per_b],
                *((str(acc_type), value) for value in acc[at : at + per_c]),
            ]
            results += emitter.asm(text, constraints, [acc_type] * per_c, args, pure=True)
    if packed:
        emitter.words[op.result] = results
        per_word = instruction.c.packing
        results = [u for w in results for u in emitter.unpack([w], dtype, per_word)]
    emitter.bind(op.result, results)


def _assembly(
    ptx: str, per_a: int, per_b: int, per_c: int, acc_type: LLVMType, a_type: str, b_type: str
) -> tuple[str, str]:
    """Return the instruction's text and constraints; the accumulator's inputs are tied to its outputs."""
    names = iter(f"${i}" for i in range(per_c + per_a + per_b))
    groups = [", ".join(next(names) for _ in range(count)) for count in (per_c, per_a, per_b)]
    text = f"{ptx} {{{groups[0]}}}, {{{groups[1]}}}, {{{groups[2]}}}, {{{groups[0]}}};"
    out = f"={_CONSTRAINT[acc_type.element]}"
    ins = [_CONSTRAINT[a_type]] * per_a + [_CONSTRAINT[b_type]] * per_b
    return text, ",".join([*[out] * per_c, *ins, *(str(i) for i in range(per_c))])
