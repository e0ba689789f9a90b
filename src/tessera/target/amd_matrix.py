"""Matrix instructions of AMD's GPUs: MFMA of CDNA, WMMA of RDNA."""

from __future__ import annotations

from tessera.target.matrix_units import Fragment, MmaInstruction, Steps, halves, matrix_product, turned

# A wave's lanes are the rows of A and the columns of B and D; groups of lanes and registers walk along k and the rows
# of D. Four neighbours along k are the operand registers of a lane.
_LANES_32: Steps = ((1, 0), (2, 0), (4, 0), (8, 0), (16, 0))
_LANES_16: Steps = ((1, 0), (2, 0), (4, 0), (8, 0))


_A_MFMA_32 = Fragment(("m", "k"), (32, 8), ((0, 1), (0, 2)), (*_LANES_32, (0, 4)), packing=2)
_A_MFMA_16 = Fragment(("m", "k"), (16, 16), ((0, 1), (0, 2)), (*_LANES_16, (0, 4), (0, 8)), packing=2)
_B_MFMA_32 = Fragment(("k", "n"), (8, 32), ((1, 0), (2, 0)), turned(_A_MFMA_32.lane), packing=2)
_B_MFMA_16 = Fragment(("k", "n"), (16, 16), ((1, 0), (2, 0)), turned(_A_MFMA_16.lane), packing=2)
_C_MFMA_32 = Fragment(("m", "n"), (32, 32), ((1, 0), (2, 0), (8, 0), (16, 0)), (*turned(_LANES_32), (4, 0)))
_C_MFMA_16 = Fragment(("m", "n"), (16, 16), ((1, 0), (2, 0)), (*turned(_LANES_16), (4, 0), (8, 0)))

MFMA: tuple[MmaInstruction, ...] = tuple(
    matrix_product((dtype, dtype, "f32"), f"mfma_{dtype}", fragments, "mfma_{m}x{n}x{k}")
    for dtype in ("f16", "bf16")
    for fragments in ((_A_MFMA_16, _B_MFMA_16, _C_MFMA_16), (_A_MFMA_32, _B_MFMA_32, _C_MFMA_32))
)
"""Products of 16-bit floats by one wave of 64 lanes, as CDNA2 and later have them.

Source: AMD, "CDNA2 Instruction Set Architecture Reference Guide", "Matrix Arithmetic Instructions":
V_MFMA_F32_32X32X8F16 and V_MFMA_F32_16X16X16F16 and their BF16_1K forms.
"""


# 16 lanes hold the rows of A, or the columns of B and D; what the other 16 hold differs between generations.
_A_GFX11 = Fragment(("m", "k"), (16, 16), halves(1, 4), (*_LANES_16, (0, 0)), packing=2)
_B_GFX11 = Fragment(("k", "n"), (16, 16), halves(0, 4), (*turned(_LANES_16), (0, 0)), packing=2)
_C_GFX11 = Fragment(("m", "n"), (16, 16), halves(0, 3, 2), (*turned(_LANES_16), (1, 0)))
_A_GFX12 = Fragment(("m", "k"), (16, 16), halves(1, 3), (*_LANES_16, (0, 8)), packing=2)
_B_GFX12 = Fragment(("k", "n"), (16, 16), halves(0, 3), (*turned(_LANES_16), (8, 0)), packing=2)
_C_GFX12 = Fragment(("m", "n"), (16, 16), halves(0, 3), (*turned(_LANES_16), (8, 0)))

WMMA: tuple[MmaInstruction, ...] = tuple(
    matrix_product((dtype, dtype, "f32"), f"wmma_{generation}_{dtype}", fragments, generation + "_wmma_{m}x{n}x{k}")
    for generation, fragments in (("gfx11", (_A_GFX11, _B_GFX11, _C_GFX11)), ("gfx12", (_A_GFX12, _B_GFX12, _C_GFX12)))
    for dtype in ("f16", "bf16")
)
"""Products of 16-bit floats by one wave of 32 lanes. Before gfx12 both halves of a wave hold all of A and of B.

Source: AMD, "RDNA3 Instruction Set Architecture Reference Guide" and "RDNA4 Instruction Set Architecture Reference
Guide", "Wave Matrix Multiply Accumulate": V_WMMA_F32_16X16X16_F16 and its BF16 form, in wave32.
"""
