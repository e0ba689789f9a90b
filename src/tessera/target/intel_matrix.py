"""Matrix instructions of Intel's GPUs: DPAS, products in a systolic array eight deep."""

from __future__ import annotations

from tessera.target.matrix_units import Fragment, MmaInstruction, halves, matrix_product

# A subgroup of 16 lanes: lanes are the columns of B and D. A register of a lane holds a column's terms of one step of
# the array, 32 bits of them; A's rows are spread over the lanes, 16 bits to each.
_A_16 = Fragment(("m", "k"), (8, 16), halves(0, 3), halves(1, 4))
_B_16 = Fragment(("k", "n"), (16, 16), halves(0, 4), halves(1, 4), packing=2)
_A_8 = Fragment(("m", "k"), (8, 32), ((0, 1), *halves(0, 3)), halves(1, 4, 2), packing=2)
_B_8 = Fragment(("k", "n"), (32, 16), halves(0, 5), halves(1, 4), packing=4)
_C = Fragment(("m", "n"), (8, 16), halves(0, 3), halves(1, 4))

_I8 = ("i8", "u8")

DPAS: tuple[MmaInstruction, ...] = (
    matrix_product(("f16", "f16", "f32"), "dpas", (_A_16, _B_16, _C), "dpas_{m}x{n}x{k}"),
    matrix_product(("bf16", "bf16", "f32"), "dpas", (_A_16, _B_16, _C), "dpas_{m}x{n}x{k}"),
    *(matrix_product((a, b, "i32"), "dpas", (_A_8, _B_8, _C), "dpas_{m}x{n}x{k}") for a in _I8 for b in _I8),
)
"""Products of eight rows by one subgroup, as Xe-HPC and Xe2 have them.

Source: Khronos OpenCL registry, `cl_intel_subgroup_matrix_multiply_accumulate`, devices of subgroups of at least 16.
"""
