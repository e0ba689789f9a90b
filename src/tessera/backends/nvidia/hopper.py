"""Hopper's warpgroup products (wgmma): shared operands, products in flight, turns of two groups.

Source: PTX ISA 9.2, "Asynchronous Warpgroup Level Matrix Instructions" (matrix descriptor, strides), "bar".
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from tessera.backends.llvm.ops import F32, I32, I64
from tessera.backends.llvm.types import LLVMType
from tessera.backends.nvidia.emitter import NVIDIA, NvidiaEmitter
from tessera.backends.nvidia.matrix import operand_words
from tessera.backends.nvidia.mnemonics import warpgroup_mnemonic
from tessera.ir.target.arithmetic import SplatOp, constant_value
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import BufferType, FragmentType, element_of
from tessera.ir.target.warpgroup import (
    OrderOp,
    TensorCoreBeginOp,
    TensorCoreRetireOp,
    TensorCoreStartOp,
    TensorCoreWaitOp,
    TurnOp,
)
from tessera.ir.types import dtype_of
from tessera.numerics.dtypes import DType
from tessera.target.fragments import PANEL_BYTES, WgmmaInstruction, warpgroup_instruction

GROUP_WARPS = 4
_GROUP_ROWS = 64
_NO_GRID = 40001
_FIRST_TURN = 2
"""Named barrier 0 is the block's, 1 the consumers'; of two groups of consumers, each has its own, 1 and 2.

Turns are taken by the warpgroups of one group, so that the two uses of 2 do not meet.
"""

_SWIZZLES = {128: 1 << 62, 64: 2 << 62, 32: 3 << 62}
"""How a descriptor says in which rows of bytes an operand is swizzled."""
_PLACE_MASK = (1 << 18) - 1


class _Operand:
    """A shared operand of a warpgroup product, as descriptors see it.

    Places that are known at run time alone are added up in 32 bits, before the constant upper word is joined: where a
    sum of 64 bits has terms that ptxas of CUDA 13 does not find uniform, it loses the sum's upper word on the way to
    the uniform registers that `wgmma` reads.

    Args:
        emitter: the emitter.
        value: the buffer.
        axis: which logical axis is K.
        shared: whether all warpgroups read the same rows; else each reads 64 rows of its own.
    """

    def __init__(self, emitter: NvidiaEmitter, value: SSAValue, axis: int, shared: bool):
        type_ = value.type
        assert isinstance(type_, BufferType)
        self.bytes = type_.dtype.bytes
        stored_last = type_.permutation.index(1)
        self.k_contiguous = stored_last == axis
        rows, columns = type_.stored_shape
        self.row_bytes = min(columns * self.bytes, PANEL_BYTES)
        self.panel_bytes = rows * self.row_bytes
        leading = 16 if self.k_contiguous else self.panel_bytes
        constant = _SWIZZLES[self.row_bytes] | (type_.swizzle_bytes >> 4) << 32 | (leading >> 4) << 16
        # In a cluster the address also names the program; the descriptor holds the place in its memory alone.
        place = emitter.ops.binary("and", I32, emitter.shared_address(emitter.unit(value)), str(_PLACE_MASK))
        field = emitter.ops.binary("lshr", I32, place, "4")
        if not shared and emitter.num_warps > GROUP_WARPS:
            group = emitter.entry("group", f"lshr i32 {emitter.warp()}, 2")
            step = self.offset(_GROUP_ROWS, 0) >> 4
            field = emitter.ops.binary("add", I32, field, emitter.entry(("group", step), f"mul i32 {group}, {step}"))
        wide = emitter.ops.convert("zext", I32, field, I64)
        self.base = emitter.ops.binary("or", I64, wide, str(constant - (1 << 64) if constant >> 63 else constant))
        self.emitter = emitter

    def offset(self, along: int, k: int) -> int:
        """Return the byte distance of the element (`along`, `k`); `along` is a multiple of 64, `k` of the step."""
        if self.k_contiguous:
            inside = k * self.bytes
            return along * self.row_bytes + inside // self.row_bytes * self.panel_bytes + inside % self.row_bytes
        return along * self.bytes // self.row_bytes * self.panel_bytes + k * self.row_bytes

    def descriptor(self, bytes_: int) -> str:
        """Return the descriptor that many bytes further."""
        return self.base if bytes_ == 0 else self.emitter.ops.binary("add", I64, self.base, str(bytes_ >> 4))


def emit_warpgroup_product(emitter: NvidiaEmitter, op: TensorCoreOp) -> None:
    """Emit the instructions of a product and wait for it."""
    assert op.result is not None
    emitter.bind(op.result, _wait(emitter, dtype_of(element_of(op.acc.type)), _start(emitter, op), 0))


@NVIDIA.register(TensorCoreStartOp)
def emit_start(emitter: NvidiaEmitter, op: TensorCoreStartOp) -> None:
    """Emit the instructions of a product as a group."""
    emitter.bind(op.result, _start(emitter, op))


@NVIDIA.register(TensorCoreBeginOp)
def emit_begin(emitter: NvidiaEmitter, op: TensorCoreBeginOp) -> None:
    """Go on with the same registers; zeros are written here and not where LLVM finds their first use."""
    units = emitter.units(op.acc)
    if _is_zero(op.acc):
        kind, type_ = _register_of(dtype_of(element_of(op.acc.type)))
        text = " ".join(f"mov.b32 ${number}, 0;" for number in range(len(units)))
        units = emitter.asm(text, ",".join([f"={kind}"] * len(units)), [type_] * len(units), [])
    emitter.bind(op.result, units)


@NVIDIA.register(TensorCoreRetireOp)
def emit_retire(emitter: NvidiaEmitter, op: TensorCoreRetireOp) -> None:
    """Wait for groups without reading what they compute."""
    emitter.asm(f"wgmma.wait_group.sync.aligned {op.pending.data};", "~{memory}", [], [])


@NVIDIA.register(TurnOp)
def emit_turn(emitter: NvidiaEmitter, op: TurnOp) -> None:
    """Wait or arrive at one of two named barriers: whoever waits for its turn, and the other one's arrival."""
    threads = 2 * GROUP_WARPS * 32
    group = emitter.entry("group", f"lshr i32 {emitter.warp_uniform()}, 2")
    if op.step.data == "init":
        second = emitter.entry("group.second", f"icmp eq i32 {group}, 1")
        emitter.asm(f"@$0 bar.arrive {_FIRST_TURN}, {threads};", "b,~{memory}", [], [("i1", second)])
        return
    mine = emitter.entry("turn.mine", f"add i32 {group}, {_FIRST_TURN}")
    other = emitter.entry("turn.other", f"sub i32 {2 * _FIRST_TURN + 1}, {mine}")
    if op.step.data == "take":
        emitter.asm(f"bar.sync $0, {threads};", "r,~{memory}", [], [("i32", mine)])
    else:
        emitter.asm(f"bar.arrive $0, {threads};", "r,~{memory}", [], [("i32", other)])


@NVIDIA.register(OrderOp)
def emit_order(emitter: NvidiaEmitter, _op: OrderOp) -> None:
    """Branch on a condition that never holds, unknown to the assembler: it schedules each basic block by itself.

    The condition is a size of the grid in a dimension that launches do not use.
    """
    emitter.module.declare("declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.z()")
    size = emitter.entry("nctaid.z", "call i32 @llvm.nvvm.read.ptx.sreg.nctaid.z()")
    never = emitter.entry("never", f"icmp eq i32 {size}, {_NO_GRID}")
    text = "{ again: @!$0 bra done; nanosleep.u32 20; bra again; done: }"
    emitter.asm(text, "b,~{memory}", [], [("i1", never)])


@NVIDIA.register(TensorCoreWaitOp)
def emit_product_wait(emitter: NvidiaEmitter, op: TensorCoreWaitOp) -> None:
    """Wait for a product; the registers that it reads as A are inputs, so that they stay unchanged up to here."""
    held = [("i32", word) for word in emitter.words.get(op.product, [])]
    dtype = dtype_of(element_of(op.result.type))
    emitter.bind(op.result, _wait(emitter, dtype, emitter.units(op.product), op.pending.data, held))


def _start(emitter: NvidiaEmitter, op: TensorCoreOp | TensorCoreStartOp) -> list[str]:
    """Issue the instructions of a product as a group; accumulators are tied through all of them."""
    instruction = warpgroup_instruction(op.instruction.data)
    groups = emitter.num_warps // GROUP_WARPS
    assert isinstance(op.b.type, BufferType)
    depth = op.b.type.shape[0]
    b = _Operand(emitter, op.b, 0, shared=True)
    a = None if isinstance(op.a.type, FragmentType) else _Operand(emitter, op.a, 1, shared=False)
    a_words = operand_words(emitter, op, op.a, instruction.a, False) if a is None else []
    per_tile = instruction.n // 2
    a_words = _fence(emitter, a_words)
    if isinstance(op, TensorCoreStartOp):  # products that it goes on with are waited for where it is
        emitter.words[op.result] = [*emitter.words.get(op.acc, []), *(word for _, word in a_words)]
    zero = _is_zero(op.acc)
    acc = emitter.units(op.acc)
    tiles = len(acc) // per_tile
    results: list[str] = []
    for tile in range(tiles):
        current: list[str] | None = None if zero else acc[tile * per_tile : (tile + 1) * per_tile]
        for k in range(0, depth, instruction.k):
            b_descriptor = b.descriptor(b.offset(0, k))
            if a is not None:
                along = tile * groups * _GROUP_ROWS
                left = [("i64", a.descriptor(a.offset(along, k)))]
            else:
                per_step = instruction.a.registers
                at = (tile * (depth // instruction.k) + k // instruction.k) * per_step
                left = a_words[at : at + per_step]
            current = _issue(emitter, instruction, current, left, b_descriptor, a, b)
        assert current is not None
        results += current
    emitter.asm("wgmma.commit_group.sync.aligned;", "~{memory}", [], [])
    return results


def _is_zero(acc: SSAValue) -> bool:
    """Return whether accumulators start from zero, which the first instruction does by itself."""
    owner = acc.owner
    return isinstance(owner, SplatOp) and constant_value(owner.value) == 0


def _fence(emitter: NvidiaEmitter, words: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Order what was written to registers before the products that read them; tying an operand keeps it ahead."""
    count = len(words)
    constraints = ",".join([*["=r"] * count, *(str(i) for i in range(count)), "~{memory}"])
    fenced = emitter.asm("wgmma.fence.sync.aligned;", constraints, [I32] * count, words)
    return [("i32", word) for word in fenced]


def _issue(
    emitter: NvidiaEmitter,
    instruction: WgmmaInstruction,
    acc: list[str] | None,
    left: list[tuple[str, str]],
    b_descriptor: str,
    a: _Operand | None,
    b: _Operand,
) -> list[str]:
    """Issue one instruction; without accumulators it starts from zero."""
    count = instruction.n // 2
    outputs = ", ".join(f"${i}" for i in range(count))
    names = [f"${count + i}" for i in range(len(left))]
    first = names[0] if a is not None else "{" + ", ".join(names) + "}"
    whole = instruction.acc_dtype == "i32"
    kind, type_ = ("r", I32) if whole else ("f", F32)
    flags = "p" if whole else "p, 1, 1"  # integers have no signs to flip
    if instruction.transposable:
        flags += f", {int(not a.k_contiguous)}" if a is not None else ""
        flags += f", {int(not b.k_contiguous)}"
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, {int(acc is not None)}, 0; "
        f"{warpgroup_mnemonic(instruction)} {{{outputs}}}, {first}, ${count + len(left)}, {flags}; }}"
    )
    kinds = ["l" if t == "i64" else "r" for t, _ in left]
    tied = [str(i) for i in range(count)] if acc is not None else []
    constraints = ",".join([*[f"={kind}"] * count, *kinds, "l", *tied, "~{memory}"])
    args = [*left, ("i64", b_descriptor), *((str(type_), value) for value in acc or ())]
    return emitter.asm(text, constraints, [type_] * count, args)


def _register_of(dtype: DType) -> tuple[str, LLVMType]:
    """Return the constraint and the type of accumulators' registers."""
    return ("r", I32) if dtype.kind == "int" else ("f", F32)


def _wait(
    emitter: NvidiaEmitter, dtype: DType, acc: list[str], pending: int, held: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """Wait until `pending` groups are left; tying the accumulators keeps every later use behind it."""
    count = len(acc)
    kind, type_ = _register_of(dtype)
    tied = (str(i) for i in range(count))
    constraints = ",".join([*[f"={kind}"] * count, *tied, *["r"] * len(held), "~{memory}"])
    args = [*((str(type_), value) for value in acc), *held]
    sums = emitter.asm(f"wgmma.wait_group.sync.aligned {pending};", constraints, [type_] * count, args)
    return _copied(emitter, dtype, sums) if emitter.copies_sums else sums


def _copied(emitter: NvidiaEmitter, dtype: DType, sums: list[str]) -> list[str]:
    """Copy accumulators behind the wait for them, to registers that LLVM may give any other value."""
    count = len(sums)
    kind, type_ = _register_of(dtype)
    text = " ".join(f"mov.b32 ${number}, ${count + number};" for number in range(count))
    constraints = ",".join([*[f"=&{kind}"] * count, *[kind] * count])
    return emitter.asm(text, constraints, [type_] * count, [(str(type_), value) for value in sums])
