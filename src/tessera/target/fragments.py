"""Matrix instructions and where every thread holds their operands: one table for all vendors.

Here are those of NVIDIA, and how an instruction is looked up; those of others are beside it, in files of their own.

Source: PTX ISA 9.2, "Matrix multiply-accumulate operation using mma instruction" and its sections
"Matrix Fragments for mma.*"; the section of each table is named beside it.
"""

from __future__ import annotations

from functools import cache

from tessera.data import dataclass
from tessera.target.amd_matrix import MFMA, WMMA
from tessera.target.cpu_matrix import AMX, ARM
from tessera.target.intel_matrix import DPAS
from tessera.target.matrix_units import Fragment, MmaInstruction, Steps, matrix_product
from tessera.target.records import TargetRecord

PANEL_BYTES = 128
"""Width of the panels that the copy engine and the warpgroup matrix unit read wide tiles in."""


# Lane = 4·groupID + threadID_in_group. In every shape but Volta's, groupID walks the rows of A and C and the
# columns of B, one at a time; only the step of threadID_in_group and the registers differ.
_GROUP_ROWS: Steps = ((1, 0), (2, 0), (4, 0))
_GROUP_COLUMNS: Steps = ((0, 1), (0, 2), (0, 4))

# Accumulators are alike in all shapes of the same m: two neighbours in a row, then eight rows further down.
_LANES_C: Steps = ((0, 2), (0, 4), *_GROUP_ROWS)
_C_M16 = Fragment(("m", "n"), (16, 8), ((0, 1), (8, 0)), _LANES_C)
_C_M16_F16 = Fragment(("m", "n"), (16, 8), ((0, 1), (8, 0)), _LANES_C, packing=2)
_C_M8 = Fragment(("m", "n"), (8, 8), ((0, 1),), _LANES_C)

# 16-bit elements, two to a register: "mma.m16n8k8" and "mma.m16n8k16 with floating point type".
_LANES_A16: Steps = ((0, 2), (0, 4), *_GROUP_ROWS)
_LANES_B16: Steps = ((2, 0), (4, 0), *_GROUP_COLUMNS)
_A16_K8 = Fragment(("m", "k"), (16, 8), ((0, 1), (8, 0)), _LANES_A16, packing=2)
_B16_K8 = Fragment(("k", "n"), (8, 8), ((1, 0),), _LANES_B16, packing=2)
_A16_K16 = Fragment(("m", "k"), (16, 16), ((0, 1), (8, 0), (0, 8)), _LANES_A16, packing=2)
_B16_K16 = Fragment(("k", "n"), (16, 8), ((1, 0), (8, 0)), _LANES_B16, packing=2)

# 8-bit elements, four to a register: "mma.m8n8k16", "mma.m16n8k16 with integer type", "mma.m16n8k32".
_LANES_A8: Steps = ((0, 4), (0, 8), *_GROUP_ROWS)
_LANES_B8: Steps = ((4, 0), (8, 0), *_GROUP_COLUMNS)
_A8_M8 = Fragment(("m", "k"), (8, 16), ((0, 1), (0, 2)), _LANES_A8, packing=4)
_A8_K16 = Fragment(("m", "k"), (16, 16), ((0, 1), (0, 2), (8, 0)), _LANES_A8, packing=4)
_A8_K32 = Fragment(("m", "k"), (16, 32), ((0, 1), (0, 2), (8, 0), (0, 16)), _LANES_A8, packing=4)
_B8_K16 = Fragment(("k", "n"), (16, 8), ((1, 0), (2, 0)), _LANES_B8, packing=4)
_B8_K32 = Fragment(("k", "n"), (32, 8), ((1, 0), (2, 0), (16, 0)), _LANES_B8, packing=4)

# One element to a register, tf32 and f64 alike: "mma.m8n8k4 with .f64", "mma.m16n8k4", "mma.m16n8k8",
# "mma.m16n8k16".
_LANES_A32: Steps = ((0, 1), (0, 2), *_GROUP_ROWS)
_LANES_B32: Steps = ((1, 0), (2, 0), *_GROUP_COLUMNS)
_A32_M8 = Fragment(("m", "k"), (8, 4), (), _LANES_A32)
_A32_K4 = Fragment(("m", "k"), (16, 4), ((8, 0),), _LANES_A32)
_A32_K8 = Fragment(("m", "k"), (16, 8), ((8, 0), (0, 4)), _LANES_A32)
_A32_K16 = Fragment(("m", "k"), (16, 16), ((8, 0), (0, 4), (0, 8)), _LANES_A32)
_B32_K4 = Fragment(("k", "n"), (4, 8), (), _LANES_B32)
_B32_K8 = Fragment(("k", "n"), (8, 8), ((4, 0),), _LANES_B32)
_B32_K16 = Fragment(("k", "n"), (16, 8), ((4, 0), (8, 0)), _LANES_B32)

# "mma.m8n8k4 with .f16": a warp computes four independent 8×8×4 products, one per quad-pair (lane bits 2 and
# 3; lane bit 4 is the pair's upper half). They are laid out here as one 16×16×4 product: quad-pairs 0 and 2
# take the upper rows, 0 and 1 the left columns, so that A is held twice along n and B twice along m.
_A_VOLTA = Fragment(("m", "k"), (16, 4), ((0, 1), (0, 2)), ((1, 0), (2, 0), (8, 0), (0, 0), (4, 0)), packing=2)
_B_VOLTA = Fragment(("k", "n"), (4, 16), ((1, 0), (2, 0)), ((0, 1), (0, 2), (0, 0), (0, 8), (0, 4)), packing=2)
_C_VOLTA_F32 = Fragment(("m", "n"), (16, 16), ((0, 1), (2, 0), (0, 4)), ((1, 0), (0, 2), (8, 0), (0, 8), (4, 0)))
_C_VOLTA_F16 = Fragment(
    ("m", "n"), (16, 16), ((0, 1), (0, 2), (0, 4)), ((1, 0), (2, 0), (8, 0), (0, 8), (4, 0)), packing=2
)


_I8 = ("i8", "u8")
_FP8 = ("fp8_e4m3", "fp8_e5m2")

MMA_SYNC: tuple[MmaInstruction, ...] = (
    matrix_product(("f16", "f16", "f32"), "mma_f16", (_A_VOLTA, _B_VOLTA, _C_VOLTA_F32), "m8n8k4"),
    matrix_product(("f16", "f16", "f16"), "mma_f16", (_A_VOLTA, _B_VOLTA, _C_VOLTA_F16), "m8n8k4"),
    matrix_product(("f16", "f16", "f32"), "mma_f16_m16n8k8", (_A16_K8, _B16_K8, _C_M16)),
    matrix_product(("f16", "f16", "f16"), "mma_f16_m16n8k8", (_A16_K8, _B16_K8, _C_M16_F16)),
    matrix_product(("f16", "f16", "f32"), "mma_m16n8k16", (_A16_K16, _B16_K16, _C_M16)),
    matrix_product(("f16", "f16", "f16"), "mma_m16n8k16", (_A16_K16, _B16_K16, _C_M16_F16)),
    matrix_product(("bf16", "bf16", "f32"), "mma_bf16", (_A16_K8, _B16_K8, _C_M16)),
    matrix_product(("bf16", "bf16", "f32"), "mma_bf16", (_A16_K16, _B16_K16, _C_M16)),
    matrix_product(("tf32", "tf32", "f32"), "mma_tf32", (_A32_K4, _B32_K4, _C_M16)),
    matrix_product(("tf32", "tf32", "f32"), "mma_tf32", (_A32_K8, _B32_K8, _C_M16)),
    matrix_product(("f64", "f64", "f64"), "mma_f64", (_A32_M8, _B32_K4, _C_M8)),
    matrix_product(("f64", "f64", "f64"), "mma_f64_m16n8", (_A32_K4, _B32_K4, _C_M16)),
    matrix_product(("f64", "f64", "f64"), "mma_f64_m16n8", (_A32_K8, _B32_K8, _C_M16)),
    matrix_product(("f64", "f64", "f64"), "mma_f64_m16n8", (_A32_K16, _B32_K16, _C_M16)),
    *(matrix_product((a, b, "i32"), "mma_int8", (_A8_M8, _B8_K16, _C_M8)) for a in _I8 for b in _I8),
    *(matrix_product((a, b, "i32"), "mma_m16n8k16", (_A8_K16, _B8_K16, _C_M16)) for a in _I8 for b in _I8),
    *(matrix_product((a, b, "i32"), "mma_m16n8k16", (_A8_K32, _B8_K32, _C_M16)) for a in _I8 for b in _I8),
    *(matrix_product((a, b, "f32"), "mma_fp8_e4m3", (_A8_K32, _B8_K32, _C_M16)) for a in _FP8 for b in _FP8),
)
"""Every dense `mma.sync` instruction that Tessera emits; of those for the same dtypes, the one to prefer last.

Left out: sub-byte and single-bit types, sparsity, block scales (sm_120a), and the fp8 forms that came with
PTX ISA 8.7 (k = 16, f16 accumulators), which gain nothing over k = 32 in f32.
"""


INSTRUCTIONS = (*MMA_SYNC, *MFMA, *WMMA, *DPAS, *AMX, *ARM)
"""Every matrix instruction that one warp, or one thread of a CPU, issues, of all vendors."""

_BY_NAME = {instruction.name: instruction for instruction in INSTRUCTIONS}


def mma_instruction(name: str) -> MmaInstruction:
    """Return the instruction of this name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]


def mma_instructions(a_dtype: str, b_dtype: str, acc_dtype: str, target: TargetRecord) -> tuple[MmaInstruction, ...]:
    """Return the instructions that a GPU has for these dtypes, the one to prefer first.

    Args:
        a_dtype: dtype of A, e.g. "bf16"; f32 data computed in tf32 asks for "tf32".
        b_dtype: dtype of B.
        acc_dtype: dtype of C and D.
        target: the GPU.

    Returns:
        The newest instructions first, among those the largest; empty when the GPU has none.
    """
    wanted = (a_dtype, b_dtype, acc_dtype)
    return tuple(
        one
        for one in reversed(INSTRUCTIONS)
        if (one.a_dtype, one.b_dtype, one.acc_dtype) == wanted and target.has(one.needs)
    )


def mma_for(
    a_dtype: str, b_dtype: str, acc_dtype: str, target: TargetRecord, shape: tuple[int, int, int] | None = None
) -> tuple[MmaInstruction | None, str | None]:
    """Return the instruction that computes a product, and the dtype that operands are converted to first.

    Args:
        a_dtype: dtype of A, as for `mma_instructions`.
        b_dtype: dtype of B.
        acc_dtype: dtype of C and D.
        target: the GPU.
        shape: rows, columns and depth of the tile; None asks whether any tile will do.

    Returns:
        None and None where the GPU has no instruction; a dtype where it has one for what operands convert to exactly.
    """

    def fitting(left: str, right: str) -> MmaInstruction | None:
        found = mma_instructions(left, right, acc_dtype, target)
        return next((one for one in found if shape is None or _fits(one, shape)), None)

    exact = fitting(a_dtype, b_dtype)
    if exact is None and a_dtype in _FP8 and b_dtype in _FP8 and (through := fitting("f16", "f16")) is not None:
        return through, "f16"
    return exact, None


def _fits(instruction: MmaInstruction, shape: tuple[int, int, int]) -> bool:
    m, n, k = shape
    return m >= instruction.a.shape[0] and n >= instruction.b.shape[1] and k >= instruction.k


@dataclass(frozen=True)
class WgmmaInstruction:
    """One asynchronous warpgroup product: D (64, n) += A (64, k)·B (k, n), B from shared memory, A from either.

    A warp holds rows 16·w to 16·w + 15 of D and of an A in registers, as `mma.sync` m16 does.

    Attributes:
        name: unique key, e.g. `wgmma_m64n256k16_bf16_bf16_f32`.
        n: columns of B and D, a multiple of 8 up to 256.
        k: products summed by one issue (32 bytes of an operand).
        a_dtype: dtype of A.
        b_dtype: dtype of B.
        acc_dtype: dtype of D.
        transposable: whether operands may be stored with M or N contiguous (16-bit types only).
        a: fragment of A in registers.
        c: fragment of D.

    Source: PTX ISA 9.2, "Asynchronous Warpgroup Level Matrix Instructions".
    """

    name: str
    n: int
    k: int
    a_dtype: str
    b_dtype: str
    acc_dtype: str
    transposable: bool
    a: Fragment
    c: Fragment


_WGMMA_A = {
    "f16": _A16_K16,
    "bf16": _A16_K16,
    "fp8_e4m3": _A8_K32,
    "fp8_e5m2": _A8_K32,
    "i8": _A8_K32,
    "u8": _A8_K32,
    "tf32": _A32_K8,
}


def wgmma_instruction(a_dtype: str, b_dtype: str, acc_dtype: str, n: int) -> WgmmaInstruction | None:
    """Return the warpgroup instruction for these dtypes and this n, None when there is none."""
    mixed = any(a_dtype in kinds and b_dtype in kinds for kinds in (_FP8, _I8))
    if a_dtype not in _WGMMA_A or not (a_dtype == b_dtype or mixed):
        return None
    whole = a_dtype in _I8
    if acc_dtype != ("i32" if whole else "f32") or n % (16 if whole and n > 32 else 8) or not 8 <= n <= 256:
        return None
    fragment = _WGMMA_A[a_dtype]
    k = fragment.shape[1]
    return WgmmaInstruction(
        name=f"wgmma_m64n{n}k{k}_{a_dtype}_{b_dtype}_{acc_dtype}",
        n=n,
        k=k,
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        acc_dtype=acc_dtype,
        transposable=a_dtype in ("f16", "bf16"),
        a=fragment,
        c=_C_M16,
    )


@cache
def _warpgroup_instructions() -> dict[str, WgmmaInstruction]:
    found = [
        wgmma_instruction(a, b, acc, n)
        for a in _WGMMA_A
        for b in _WGMMA_A
        for acc in ("f32", "i32")
        for n in range(8, 257, 8)
    ]
    return {one.name: one for one in found if one is not None}


def warpgroup_instruction(name: str) -> WgmmaInstruction:
    """Return the warpgroup instruction of this name.

    Raises:
        KeyError: there is none.
    """
    return _warpgroup_instructions()[name]
