"""How a CPU multiplies tiles: with which instruction, and in which form operands lie in scratch memory."""

from __future__ import annotations

from dataclasses import replace

from tessera.data import dataclass
from tessera.numerics import dtypes
from tessera.numerics.dtypes import DType
from tessera.target.fragments import mma_instruction
from tessera.target.matrix_units import MmaInstruction
from tessera.target.records import TargetRecord

UNITS = {
    "amx_bf16": mma_instruction("amx_16x16x32_bf16_bf16_f32"),
    "amx_f16": mma_instruction("amx_16x16x32_f16_f16_f32"),
    "amx_i8": mma_instruction("amx_16x16x64_i8_i8_i32"),
}
"""The products of matrix units that CPUs use, by the names of their forms."""


def _terms(unit: MmaInstruction) -> int:
    """Return the neighbours along the depth that 32 bits of an operand hold."""
    return 4 // dtypes.BY_NAME[unit.a_dtype].bytes


GROUPS = {"fma": 1, "chain": 1, "dot_bf16": 2, "dot_i16": 2, "dot_i8": 4, "dot_u8": 4, "dot_u8_i8": 4} | {
    name: _terms(unit) for name, unit in UNITS.items()
}
"""Terms of the sum that one element of an operand holds, by the names of forms.

`chain` is `fma` in one given order: to each element of the accumulator the products are added one after the other, each
fused, whatever the CPU has.
"""


@dataclass(frozen=True)
class Form:
    """How a product is computed.

    Args:
        instruction: name of the CPU instruction (see `backends.cpu.instructions`).
        operand: dtype that operands are converted to.
        total: dtype of the sums.
        biased: whether 128 is added to each element of the left operand, for an instruction that takes it unsigned.
    """

    instruction: str
    operand: DType
    total: DType
    biased: bool = False

    @property
    def group(self) -> int:
        """Neighbours along the depth that one 32-bit element holds; 1 when elements stand for themselves."""
        return GROUPS[self.instruction]

    @property
    def unit(self) -> MmaInstruction | None:
        """The matrix unit's instruction, None for vector units."""
        return UNITS.get(self.instruction)

    @property
    def packed(self) -> DType:
        """The dtype of packed operands: groups are 32 bits wide."""
        return self.operand if self.group == 1 else dtypes.i32

    @property
    def reads_rows(self) -> bool:
        """Whether contiguous rows of a tensor can stand for packed ones: their elements, or pairs of them."""
        return self.tiled or (self.group <= 2 and not self.biased)

    @property
    def sums_apart(self) -> bool:
        """Whether the terms of an inner product may be added up in the lanes of a vector, and these at the end."""
        return not self.tiled and self.instruction != "chain"

    def widens(self, dtype: DType) -> bool:
        """Return whether elements of a dtype can be widened to operands as they are read."""
        return self.group == 1 and self.operand == dtypes.f32 and dtypes.widens(dtype, dtypes.f32)

    @property
    def tiled(self) -> bool:
        """Whether a matrix unit multiplies tiles."""
        return self.unit is not None


def form_of(target: TargetRecord, a: DType, b: DType, total: DType, strict: bool) -> Form:
    """Return the fastest form whose products are exact.

    Args:
        target: the CPU.
        a: dtype of the left operand.
        b: dtype of the right operand.
        total: dtype of the accumulator.
        strict: whether the order of the sum is given, and subnormals must be kept, which instructions for 16-bit floats
            flush to zero.
    """
    if total.is_int:
        return _integers(target, a, total)
    if strict:
        wide = dtypes.f64 if dtypes.f64 in (a, b, total) else dtypes.f32
        return Form("chain", wide, wide)
    if dtypes.f64 in (a, b, total):
        return Form("fma", dtypes.f64, dtypes.f64)
    if a == b == dtypes.f16 and target.has(UNITS["amx_f16"].needs):
        return Form("amx_f16", dtypes.f16, dtypes.f32)
    # Every float of 8 bits or fewer is a bf16 number.
    narrow = all(dtype == dtypes.bf16 or dtype.bits <= 8 for dtype in (a, b))
    if narrow:
        if target.has(UNITS["amx_bf16"].needs) and target.has("avx512bf16"):
            return Form("amx_bf16", dtypes.bf16, dtypes.f32)
        if (target.has("avx512bf16") and target.vector_bytes == 64) or (target.has("neon") and target.has("bf16")):
            return Form("dot_bf16", dtypes.bf16, dtypes.f32)
    return Form("fma", dtypes.f32, dtypes.f32)


def panel_width(target: TargetRecord, form: Form) -> int:
    """Return the columns of one panel of a right operand: so many vectors that enough rows of sums fit in registers.

    Matrix units take two tiles beside each other.
    """
    return panel_widths(target, form)[-1]


def panel_widths(target: TargetRecord, form: Form) -> tuple[int, ...]:
    """Return how many columns a panel of a right operand can have: whole vectors, of which the last are enough."""
    lanes = max(target.vector_bytes // form.total.bytes, 1)
    if form.tiled:
        return (2 * lanes,)
    most = lanes * (4 if target.has("avx512f") or target.has("neon") else 2)
    step = max(target.vector_bytes // 4, 1)  # packing goes by vectors of 32-bit elements
    return tuple(range(step, most + 1, step)) or (most,)


def vector_form(form: Form) -> Form:
    """Return the form for vector units where the given one is for a matrix unit."""
    if form.instruction == "amx_bf16":
        return replace(form, instruction="dot_bf16")
    if form.instruction == "amx_f16":
        return Form("fma", dtypes.f32, dtypes.f32)
    return replace(form, instruction="dot_u8_i8", biased=True) if form.instruction == "amx_i8" else form


def _integers(target: TargetRecord, operand: DType, total: DType) -> Form:
    if total.bits == 64:
        return Form("fma", dtypes.i64, dtypes.i64)
    signed = operand.kind == "int"
    if operand.bits == 8:
        if target.has("neon") and target.has("dotprod"):
            return Form("dot_i8" if signed else "dot_u8", operand, dtypes.i32)
        if signed and target.has(UNITS["amx_i8"].needs) and target.has("avx512vnni"):
            return Form("amx_i8", operand, dtypes.i32)
        if signed and ((target.has("avx512vnni") and target.vector_bytes == 64) or target.has("avxvnni")):
            return Form("dot_u8_i8", operand, dtypes.i32, biased=True)
    # Products of pairs of 16-bit integers are summed modulo 2^32, as the language asks.
    if not target.has("neon") and (operand.bits == 8 or (operand.bits == 16 and signed)):
        return Form("dot_i16", dtypes.i16, dtypes.i32)
    return Form("fma", dtypes.i32, dtypes.i32)
