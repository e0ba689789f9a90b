"""The multiply-add instructions of products, by the names that `target.products` gives them."""

from __future__ import annotations

from tessera.backends.llvm.ops import Ops
from tessera.backends.llvm.types import LLVMType
from tessera.target.products import GROUPS
from tessera.target.records import TargetRecord

_NEON = {"dot_i8": "sdot", "dot_u8": "udot"}


def multiply_add(
    ops: Ops, target: TargetRecord, instruction: str, types: tuple[LLVMType, LLVMType], a: str, b: str, c: str
) -> str:
    """Append `c + a * b`, summed over the members of each group.

    Args:
        ops: where it goes.
        target: the CPU.
        instruction: a key of `target.products.GROUPS`, of the vector units.
        types: of operands and of sums.
        a: left operand.
        b: right operand.
        c: sums.
    """
    operand, total = types
    if instruction == "chain":
        return ops.intrinsic("fma", total, a, b, c)
    if instruction == "fma":
        return _fma(ops, target, total, a, b, c)
    if instruction == "dot_i16":
        return _pairs(ops, target, operand, a, b, c)
    if target.has("neon"):
        element, name = ("bfloat", "bfdot") if instruction == "dot_bf16" else ("i8", _NEON[instruction])
        narrow = LLVMType(element, operand.width * GROUPS[instruction])
        symbol = f"llvm.aarch64.neon.{name}.{total.mangled}.{narrow.mangled}"
        left, right = (ops.convert("bitcast", operand, value, narrow) for value in (a, b))
        return ops.call(symbol, total, [(total, c), (narrow, left), (narrow, right)])
    name = "avx512bf16.dpbf16ps" if instruction == "dot_bf16" else "avx512.vpdpbusd"
    symbol = f"llvm.x86.{name}.{operand.width * 32}"
    return ops.call(symbol, total, [(total, c), (operand, a), (operand, b)])


def _fma(ops: Ops, target: TargetRecord, type_: LLVMType, a: str, b: str, c: str) -> str:
    """Fuse floats wherever the CPU can, whatever the profile: a product is one operation of the language."""
    if not type_.is_float:
        return ops.binary("add", type_, ops.binary("mul", type_, a, b), c)
    if target.has("fma") or target.has("neon"):
        return ops.intrinsic("fma", type_, a, b, c)
    return ops.binary("fadd", type_, ops.binary("fmul", type_, a, b), c)


def _pairs(ops: Ops, target: TargetRecord, type_: LLVMType, a: str, b: str, c: str) -> str:
    """Multiply pairs of 16-bit integers."""
    if target.has("avx512vnni"):
        symbol = f"llvm.x86.avx512.vpdpwssd.{type_.width * 32}"
        return ops.call(symbol, type_, [(type_, c), (type_, a), (type_, b)])
    name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[type_.width]
    words = LLVMType("i16", 2 * type_.width)
    left, right = (ops.convert("bitcast", type_, value, words) for value in (a, b))
    return ops.binary("add", type_, c, ops.call(f"llvm.x86.{name}", type_, [(words, left), (words, right)]))
