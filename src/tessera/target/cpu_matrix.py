"""Matrix instructions of CPUs: tile registers of x86-64 (AMX), vectors of Arm (BFMMLA, SMMLA).

One thread holds all of an operand.
"""

from __future__ import annotations

from tessera.target.matrix_units import Fragment, MmaInstruction, halves, matrix_product

# A tile register holds 16 rows of 64 bytes. Each 32 bits of A are neighbours along k; B is stored with the same groups
# of terms, those of 16 columns in a row.
_AMX_A_16 = Fragment(("m", "k"), (16, 32), (*halves(1, 5), *halves(0, 4)), (), packing=512)
_AMX_B_16 = Fragment(("k", "n"), (32, 16), ((1, 0), *halves(1, 4), *halves(0, 4, 2)), (), packing=512)
_AMX_A_8 = Fragment(("m", "k"), (16, 64), (*halves(1, 6), *halves(0, 4)), (), packing=1024)
_AMX_B_8 = Fragment(("k", "n"), (64, 16), (*halves(0, 2), *halves(1, 4), *halves(0, 4, 4)), (), packing=1024)
_AMX_C = Fragment(("m", "n"), (16, 16), (*halves(1, 4), *halves(0, 4)), (), packing=256)

_AMX_16, _AMX_8 = (_AMX_A_16, _AMX_B_16, _AMX_C), (_AMX_A_8, _AMX_B_8, _AMX_C)
_I8 = ("i8", "u8")

AMX: tuple[MmaInstruction, ...] = (
    matrix_product(("bf16", "bf16", "f32"), "amx-bf16", _AMX_16, "amx_{m}x{n}x{k}"),
    matrix_product(("f16", "f16", "f32"), "amx-fp16", _AMX_16, "amx_{m}x{n}x{k}"),
    *(matrix_product((a, b, "i32"), "amx-int8", _AMX_8, "amx_{m}x{n}x{k}") for a in _I8 for b in _I8),
)
"""Products of whole tile registers.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: TDPBF16PS, TDPFP16PS, TDPBSSD and their
kin.
"""

# A vector of 128 bits: two rows of A; two columns of B, each contiguous; two rows of D.
_ARM_A_16 = Fragment(("m", "k"), (2, 4), (*halves(1, 2), (1, 0)), (), packing=8)
_ARM_B_16 = Fragment(("k", "n"), (4, 2), (*halves(0, 2), (0, 1)), (), packing=8)
_ARM_A_8 = Fragment(("m", "k"), (2, 8), (*halves(1, 3), (1, 0)), (), packing=16)
_ARM_B_8 = Fragment(("k", "n"), (8, 2), (*halves(0, 3), (0, 1)), (), packing=16)
_ARM_C = Fragment(("m", "n"), (2, 2), ((0, 1), (1, 0)), (), packing=4)

ARM: tuple[MmaInstruction, ...] = (
    matrix_product(("bf16", "bf16", "f32"), "bf16", (_ARM_A_16, _ARM_B_16, _ARM_C), "arm_{m}x{n}x{k}"),
    *(
        matrix_product((a, b, "i32"), "i8mm", (_ARM_A_8, _ARM_B_8, _ARM_C), "arm_{m}x{n}x{k}")
        for a, b in (("i8", "i8"), ("u8", "u8"), ("u8", "i8"))
    ),
)
"""Products of 128-bit vectors.

Source: Arm Architecture Reference Manual for A-profile (DDI 0487): BFMMLA, SMMLA, UMMLA, USMMLA (vector).
"""
