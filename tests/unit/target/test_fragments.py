"""Fragment tables against the index formulas of the PTX ISA, written here as the manual states them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from tessera.backends.nvidia.mnemonics import mma_mnemonic
from tessera.numerics.dtypes import BY_NAME
from tessera.target.fragments import (
    AMX,
    ARM,
    DPAS,
    MFMA,
    MMA_SYNC,
    WMMA,
    Fragment,
    MmaInstruction,
    mma_instruction,
    mma_instructions,
)
from tessera.target.nvidia import NVIDIA_TARGETS, compute_capability, nvidia_target
from tessera.target.products import UNITS, form_of
from tessera.target.registry import target_named

# (element number i, lane) -> (row, column)
Formula = Callable[[int, int], tuple[int, int]]


def _at(fragment: Fragment, i: int, lane: int) -> tuple[int, int]:
    row = column = 0
    for bits, steps in ((i, fragment.register), (lane, fragment.lane)):
        for bit, step in enumerate(steps):
            if bits >> bit & 1:
                row, column = row ^ step[0], column ^ step[1]
    return row, column


def _group(lane: int) -> int:
    return lane >> 2


def _tid(lane: int) -> int:
    return lane % 4


# "Accumulators (C or D)" of every m16n8 shape, and of m8n8k4.f64 and m8n8k16.
def _c_m16(i: int, lane: int) -> tuple[int, int]:
    return _group(lane) if i < 2 else _group(lane) + 8, _tid(lane) * 2 + (i & 0x1)


def _c_m8(i: int, lane: int) -> tuple[int, int]:
    return _group(lane), _tid(lane) * 2 + (i & 0x1)


# mma.m16n8k4 (.tf32, .f64) and mma.m8n8k4 (.f64)
def _a_m16n8k4(i: int, lane: int) -> tuple[int, int]:
    return _group(lane) if i == 0 else _group(lane) + 8, _tid(lane)


def _a_m8n8k4_f64(i: int, lane: int) -> tuple[int, int]:
    return lane >> 2, lane % 4


def _b_k4(i: int, lane: int) -> tuple[int, int]:
    return lane % 4, lane >> 2


# mma.m16n8k8
def _a_m16n8k8_f16(i: int, lane: int) -> tuple[int, int]:
    return _group(lane) if i in (0, 1) else _group(lane) + 8, _tid(lane) * 2 + (i & 0x1)


def _b_m16n8k8_f16(i: int, lane: int) -> tuple[int, int]:
    return _tid(lane) * 2 + i, _group(lane)


def _a_m16n8k8_tf32(i: int, lane: int) -> tuple[int, int]:
    return _group(lane) if i in (0, 2) else _group(lane) + 8, _tid(lane) if i in (0, 1) else _tid(lane) + 4


def _b_m16n8k8_tf32(i: int, lane: int) -> tuple[int, int]:
    return _tid(lane) if i == 0 else _tid(lane) + 4, _group(lane)


# mma.m16n8k16 with floating point type
def _a_m16n8k16_f16(i: int, lane: int) -> tuple[int, int]:
    row = _group(lane) if 0 <= i < 2 or 4 <= i < 6 else _group(lane) + 8
    return row, _tid(lane) * 2 + (i & 0x1) if i < 4 else _tid(lane) * 2 + (i & 0x1) + 8


def _b_m16n8k16_f16(i: int, lane: int) -> tuple[int, int]:
    return _tid(lane) * 2 + (i & 0x1) if i < 2 else _tid(lane) * 2 + (i & 0x1) + 8, _group(lane)


def _a_m16n8k16_f64(i: int, lane: int) -> tuple[int, int]:
    if i % 2 == 0:
        return _group(lane), i * 2 + _tid(lane)
    return _group(lane) + 8, i * 2 - 2 + _tid(lane)


def _b_m16n8k16_f64(i: int, lane: int) -> tuple[int, int]:
    return _tid(lane) + i * 4, _group(lane)


# mma.m8n8k16, mma.m16n8k16 with integer type, mma.m16n8k32
def _a_m8n8k16(i: int, lane: int) -> tuple[int, int]:
    return _group(lane), _tid(lane) * 4 + i


def _b_k16_i8(i: int, lane: int) -> tuple[int, int]:
    return _tid(lane) * 4 + i, _group(lane)


def _a_m16n8k16_i8(i: int, lane: int) -> tuple[int, int]:
    return _group(lane) if i < 4 else _group(lane) + 8, _tid(lane) * 4 + (i & 0x3)


def _a_m16n8k32(i: int, lane: int) -> tuple[int, int]:
    row = _group(lane) if 0 <= i < 4 or 8 <= i < 12 else _group(lane) + 8
    return row, _tid(lane) * 4 + (i & 0x3) if i < 8 else _tid(lane) * 4 + (i & 0x3) + 16


def _b_m16n8k32(i: int, lane: int) -> tuple[int, int]:
    return _tid(lane) * 4 + (i & 0x3) if i < 4 else _tid(lane) * 4 + (i & 0x3) + 16, _group(lane)


_FP8 = ("fp8_e4m3", "fp8_e5m2")
_I8 = ("i8", "u8")

# name -> formulas of A, B, C; elements per thread of A, B, C; registers of A, B, C in the manual's examples
_MANUAL: dict[str, tuple[tuple[Formula, Formula, Formula], tuple[int, int, int], tuple[int, int, int]]] = {
    "m16n8k8_f16_f16_f32": ((_a_m16n8k8_f16, _b_m16n8k8_f16, _c_m16), (4, 2, 4), (2, 1, 4)),
    "m16n8k8_f16_f16_f16": ((_a_m16n8k8_f16, _b_m16n8k8_f16, _c_m16), (4, 2, 4), (2, 1, 2)),
    "m16n8k8_bf16_bf16_f32": ((_a_m16n8k8_f16, _b_m16n8k8_f16, _c_m16), (4, 2, 4), (2, 1, 4)),
    "m16n8k16_f16_f16_f32": ((_a_m16n8k16_f16, _b_m16n8k16_f16, _c_m16), (8, 4, 4), (4, 2, 4)),
    "m16n8k16_f16_f16_f16": ((_a_m16n8k16_f16, _b_m16n8k16_f16, _c_m16), (8, 4, 4), (4, 2, 2)),
    "m16n8k16_bf16_bf16_f32": ((_a_m16n8k16_f16, _b_m16n8k16_f16, _c_m16), (8, 4, 4), (4, 2, 4)),
    "m16n8k4_tf32_tf32_f32": ((_a_m16n8k4, _b_k4, _c_m16), (2, 1, 4), (2, 1, 4)),
    "m16n8k8_tf32_tf32_f32": ((_a_m16n8k8_tf32, _b_m16n8k8_tf32, _c_m16), (4, 2, 4), (4, 2, 4)),
    "m8n8k4_f64_f64_f64": ((_a_m8n8k4_f64, _b_k4, _c_m8), (1, 1, 2), (1, 1, 2)),
    "m16n8k4_f64_f64_f64": ((_a_m16n8k4, _b_k4, _c_m16), (2, 1, 4), (2, 1, 4)),
    "m16n8k8_f64_f64_f64": ((_a_m16n8k8_tf32, _b_m16n8k8_tf32, _c_m16), (4, 2, 4), (4, 2, 4)),
    "m16n8k16_f64_f64_f64": ((_a_m16n8k16_f64, _b_m16n8k16_f64, _c_m16), (8, 4, 4), (8, 4, 4)),
}
for _a, _b in product(_I8, _I8):
    _MANUAL[f"m8n8k16_{_a}_{_b}_i32"] = ((_a_m8n8k16, _b_k16_i8, _c_m8), (4, 4, 2), (1, 1, 2))
    _MANUAL[f"m16n8k16_{_a}_{_b}_i32"] = ((_a_m16n8k16_i8, _b_k16_i8, _c_m16), (8, 4, 4), (2, 1, 4))
    _MANUAL[f"m16n8k32_{_a}_{_b}_i32"] = ((_a_m16n8k32, _b_m16n8k32, _c_m16), (16, 8, 4), (4, 2, 4))
for _a, _b in product(_FP8, _FP8):
    _MANUAL[f"m16n8k32_{_a}_{_b}_f32"] = ((_a_m16n8k32, _b_m16n8k32, _c_m16), (16, 8, 4), (4, 2, 4))

_VOLTA = ("m8n8k4_f16_f16_f32", "m8n8k4_f16_f16_f16")
_IDS = [i.name for i in MMA_SYNC]


def _operands(instruction: MmaInstruction) -> tuple[Fragment, Fragment, Fragment]:
    return instruction.a, instruction.b, instruction.c


def test_every_table_is_covered_by_the_manual() -> None:
    assert set(_IDS) == set(_MANUAL) | set(_VOLTA)
    assert len(_IDS) == len(set(_IDS))


@pytest.mark.parametrize("instruction", [i for i in MMA_SYNC if i.name in _MANUAL], ids=lambda i: i.name)
def test_fragments_follow_the_manual(instruction: MmaInstruction) -> None:
    formulas, elements, registers = _MANUAL[instruction.name]
    assert instruction.registers == registers
    for fragment, formula, count in zip(_operands(instruction), formulas, elements, strict=True):
        assert fragment.elements == count
        for i, lane in product(range(count), range(32)):
            assert _at(fragment, i, lane) == formula(i, lane), (fragment.axes, i, lane)


@pytest.mark.parametrize("instruction", MMA_SYNC, ids=_IDS)
def test_shapes_and_axes_agree(instruction: MmaInstruction) -> None:
    m, n, k = instruction.m, instruction.n, instruction.k
    assert [f.axes for f in _operands(instruction)] == [("m", "k"), ("k", "n"), ("m", "n")]
    assert [f.shape for f in _operands(instruction)] == [(m, k), (k, n), (m, n)]
    assert all(len(f.lane) == 5 and f.warp == () for f in _operands(instruction))


@pytest.mark.parametrize("instruction", MMA_SYNC, ids=_IDS)
def test_every_element_is_held_equally_often(instruction: MmaInstruction) -> None:
    """Exactly once, but for A and B of Volta, which two quad-pairs hold each."""
    for fragment in _operands(instruction):
        held = Counter(_at(fragment, i, lane) for i, lane in product(range(fragment.elements), range(32)))
        assert set(held) == set(product(range(fragment.shape[0]), range(fragment.shape[1])))
        copies = 2 if instruction.name in _VOLTA and "k" in fragment.axes else 1
        assert set(held.values()) == {copies}


@pytest.mark.parametrize("name", _VOLTA)
def test_volta_computes_four_products_of_the_manual(name: str) -> None:
    """Each quad-pair multiplies what its own eight lanes hold, where the manual says within 8x8x4."""
    instruction = mma_instruction(name)
    f32 = instruction.acc_dtype == "f32"
    for lane in range(32):
        quad_pair = lane >> 2 & 3
        corner = 8 * (quad_pair & 1), 8 * (quad_pair >> 1)
        row = lane % 4 if lane < 16 else lane % 4 + 4
        for i in range(4):
            assert _at(instruction.a, i, lane) == (corner[0] + row, i)
            assert _at(instruction.b, i, lane) == (i, corner[1] + row)
        for i in range(8):
            x = (lane & 0b1) + (i & 0b10)
            c_row = (x if lane < 16 else x + 4) if f32 else row
            c_column = (i & 0b100) + (lane & 0b10) + (i & 0b1) if f32 else i
            assert _at(instruction.c, i, lane) == (corner[0] + c_row, corner[1] + c_column)
    assert instruction.registers == ((2, 2, 8) if f32 else (2, 2, 4))


def test_packed_elements_lie_along_k() -> None:
    """A 32-bit register of A or B holds neighbours along k: it loads as one word of a K-major tile."""
    for instruction in MMA_SYNC:
        for fragment, step in ((instruction.a, (0, 1)), (instruction.b, (1, 0))):
            packed = fragment.packing.bit_length() - 1
            assert fragment.register[:packed] == tuple((step[0] << b, step[1] << b) for b in range(packed))


@pytest.mark.parametrize(
    ("name", "ptx", "oldest"),
    [
        ("m8n8k4_f16_f16_f32", "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", 70),
        ("m16n8k8_f16_f16_f32", "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 75),
        ("m16n8k16_f16_f16_f16", "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 80),
        ("m16n8k16_bf16_bf16_f32", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 80),
        ("m16n8k8_tf32_tf32_f32", "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 80),
        ("m8n8k16_i8_u8_i32", "mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32", 75),
        ("m16n8k32_u8_u8_i32", "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32", 80),
        ("m16n8k32_fp8_e4m3_fp8_e5m2_f32", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32", 89),
        ("m8n8k4_f64_f64_f64", "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", 80),
        ("m16n8k16_f64_f64_f64", "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64", 90),
    ],
)
def test_mnemonics_and_targets(name: str, ptx: str, oldest: int) -> None:
    instruction = mma_instruction(name)
    assert (mma_mnemonic(instruction), _oldest(instruction)) == (ptx, oldest)


@pytest.mark.parametrize(
    ("dtypes", "sm", "names"),
    [
        (("f16", "f16", "f32"), 70, ["m8n8k4"]),
        (("f16", "f16", "f32"), 75, ["m16n8k8", "m8n8k4"]),
        (("f16", "f16", "f32"), 90, ["m16n8k16", "m16n8k8", "m8n8k4"]),
        (("bf16", "bf16", "f32"), 75, []),
        (("bf16", "bf16", "f32"), 80, ["m16n8k16", "m16n8k8"]),
        (("tf32", "tf32", "f32"), 86, ["m16n8k8", "m16n8k4"]),
        (("i8", "u8", "i32"), 75, ["m8n8k16"]),
        (("i8", "i8", "i32"), 80, ["m16n8k32", "m16n8k16", "m8n8k16"]),
        (("fp8_e5m2", "fp8_e4m3", "f32"), 80, []),
        (("fp8_e5m2", "fp8_e4m3", "f32"), 120, ["m16n8k32"]),
        (("f64", "f64", "f64"), 80, ["m8n8k4"]),
        (("f64", "f64", "f64"), 90, ["m16n8k16", "m16n8k8", "m16n8k4", "m8n8k4"]),
        (("f32", "f32", "f32"), 90, []),
    ],
)
def test_choice_of_instructions(dtypes: tuple[str, str, str], sm: int, names: list[str]) -> None:
    assert [i.name.split("_")[0] for i in mma_instructions(*dtypes, nvidia_target(f"sm_{sm}"))] == names


def test_unknown_name() -> None:
    with pytest.raises(KeyError, match="m9n9k9"):
        mma_instruction("m9n9k9_f16_f16_f32")


@pytest.mark.parametrize("instruction", MFMA, ids=lambda i: i.name)
def test_a_wave_holds_operands_as_amd_documents(instruction: MmaInstruction) -> None:
    """A lane holds four terms of one row of A and one column of B, and groups of four rows of one column of D."""
    rows = instruction.m
    for lane in range(64):
        group, line = divmod(lane, rows)
        for register in range(4):
            assert _at(instruction.a, register, lane) == (line, 4 * group + register)
            assert _at(instruction.b, register, lane) == (4 * group + register, line)
        for register in range(rows * rows // 64):
            block, row = divmod(register, 4)
            assert _at(instruction.c, register, lane) == (4 * (block * (64 // rows) + group) + row, line)


def _held(fragment: Fragment, lanes: int) -> list[list[tuple[int, int]]]:
    """Return the element (row, column) of each register of each lane."""
    return [[_at(fragment, i, lane) for i in range(fragment.elements)] for lane in range(lanes)]


@pytest.mark.parametrize("instruction", WMMA, ids=lambda i: i.name)
def test_a_wave_of_32_lanes_holds_operands_as_amd_documents(instruction: MmaInstruction) -> None:
    """RDNA3: both halves hold 16 terms, D's rows alternate. RDNA4: each half has 8 terms and 8 rows of D."""
    older = instruction.needs.startswith("wmma_gfx11")
    for lane in range(32):
        half, line = divmod(lane, 16)
        for i in range(16 if older else 8):
            term = i if older else 8 * half + i
            assert _at(instruction.a, i, lane) == (line, term)
            assert _at(instruction.b, i, lane) == (term, line)
        for i in range(8):
            assert _at(instruction.c, i, lane) == (2 * i + half if older else 8 * half + i, line)


@pytest.mark.parametrize("instruction", DPAS, ids=lambda i: i.name)
def test_a_subgroup_holds_operands_as_intel_documents(instruction: MmaInstruction) -> None:
    """Lane l holds 16 bits of each of A's eight rows, and of column l of B eight times 32 bits."""
    wide = instruction.k // 8  # terms of 32 bits
    narrow = wide // 2  # terms of a row of A that a lane holds
    for lane in range(16):
        for row, part in product(range(8), range(narrow)):
            assert _at(instruction.a, row * narrow + part, lane) == (row, lane * narrow + part)
        for step, part in product(range(8), range(wide)):
            assert _at(instruction.b, step * wide + part, lane) == (step * wide + part, lane)
        for row in range(8):
            assert _at(instruction.c, row, lane) == (row, lane)


@pytest.mark.parametrize("instruction", AMX, ids=lambda i: i.name)
def test_tile_registers_multiply_as_intel_documents(instruction: MmaInstruction) -> None:
    """The manual's loops over rows of 64 bytes: dst.row[m].dword[n] += src1.row[m].x[g*k+i] * src2.row[k].x[g*n+i]."""
    group = instruction.k // 16
    a, b, c = (_held(fragment, 1)[0] for fragment in _operands(instruction))
    for m, n in product(range(16), range(16)):
        assert c[16 * m + n] == (m, n)
        terms = [
            (a[16 * group * m + group * k + i], b[16 * group * k + group * n + i])
            for k, i in product(range(16), range(group))
        ]
        assert {(left[0], right[1]) for left, right in terms} == {(m, n)}
        assert sorted(left[1] for left, _ in terms) == list(range(instruction.k))
        assert all(left[1] == right[0] for left, right in terms)


@pytest.mark.parametrize("instruction", ARM, ids=lambda i: i.name)
def test_vectors_multiply_as_arm_documents(instruction: MmaInstruction) -> None:
    """BFMMLA and SMMLA: element 2i+j of D adds the products of row i of the first and row j of the second vector."""
    k = instruction.k
    a, b, c = (_held(fragment, 1)[0] for fragment in _operands(instruction))
    for i, j in product(range(2), range(2)):
        assert c[2 * i + j] == (i, j)
        for term in range(k):
            assert (a[k * i + term], b[k * j + term]) == ((i, term), (term, j))


@pytest.mark.parametrize(
    ("dtypes", "target", "names"),
    [
        (("bf16", "bf16", "f32"), "sapphirerapids", ["amx_16x16x32_bf16_bf16_f32"]),
        (("f16", "f16", "f32"), "sapphirerapids", []),
        (("f16", "f16", "f32"), "graniterapids", ["amx_16x16x32_f16_f16_f32"]),
        (("i8", "i8", "i32"), "graniterapids", ["amx_16x16x64_i8_i8_i32"]),
        (("bf16", "bf16", "f32"), "x86-64-v4", []),
        (("bf16", "bf16", "f32"), "aarch64", []),
    ],
)
def test_cpus_have_the_units_of_their_features(dtypes: tuple[str, str, str], target: str, names: list[str]) -> None:
    assert [i.name for i in mma_instructions(*dtypes, target_named(target))] == names


def test_arm_has_them_with_their_features() -> None:
    arm = replace(target_named("aarch64"), features=frozenset({"neon", "bf16", "i8mm"}))
    assert [i.name for i in mma_instructions("bf16", "bf16", "f32", arm)] == ["arm_2x2x4_bf16_bf16_f32"]
    assert [i.name for i in mma_instructions("u8", "i8", "i32", arm)] == ["arm_2x2x8_u8_i8_i32"]
    assert mma_instructions("i8", "u8", "i32", arm) == ()


def test_forms_of_cpus_are_those_of_the_table() -> None:
    for name, unit in UNITS.items():
        form = form_of(
            target_named("graniterapids"), BY_NAME[unit.a_dtype], BY_NAME[unit.b_dtype], BY_NAME[unit.acc_dtype], False
        )
        assert (form.instruction, form.unit, form.group) == (name, unit, unit.k // unit.n)
        assert (form.operand.name, form.total.name) == (unit.a_dtype, unit.acc_dtype)


def _oldest(instruction: MmaInstruction) -> int:
    """Return the lowest compute capability that has an instruction."""
    known = [compute_capability(name) for name in NVIDIA_TARGETS if nvidia_target(name).has(instruction.needs)]
    return min(known)


def _kernel_around(instruction: MmaInstruction, sm: int) -> bytes:
    """Write PTX that issues the instruction once, with as many registers as the tables say."""
    a, b, c = instruction.registers
    in_type = "f64" if instruction.a_dtype == "f64" else "b32"
    acc_type = instruction.acc_dtype if instruction.acc_dtype in ("f32", "f64") else "b32"
    operands = {"d": (c, acc_type), "a": (a, in_type), "b": (b, in_type), "c": (c, acc_type)}
    lists = ["{" + ", ".join(f"%{x}{i}" for i in range(count)) + "}" for x, (count, _) in operands.items()]
    lines = [".version 8.4", f".target sm_{sm}", ".address_size 64", ".visible .entry k(.param .u64 p) {"]
    lines += [f".reg .{dtype} %{x}<{count}>;" for x, (count, dtype) in operands.items()]
    lines += [".reg .u64 %p;", "ld.param.u64 %p, [p];"]
    for x in "abc":
        lines += [f"ld.global.{operands[x][1]} %{x}{i}, [%p + {8 * i}];" for i in range(operands[x][0])]
    lines.append(f"{mma_mnemonic(instruction)} {', '.join(lists)};")
    lines += [f"st.global.{acc_type} [%p + {8 * i}], %d{i};" for i in range(c)]
    return "\n".join([*lines, "ret;", "}"]).encode()


def _assembles(instruction: MmaInstruction, sm: int) -> bool:
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink", reason="no assembler: install tessera[gpu-cuda]")
    handle = nvjitlink.create(1, [f"-arch=sm_{sm}"])
    source = _kernel_around(instruction, sm)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, source, len(source), "k")
        nvjitlink.complete(handle)
    except nvjitlink.nvJitLinkError:
        log = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, log)
        assert b"requires .target sm_" in log, log
        return False
    finally:
        nvjitlink.destroy(handle)
    return True


@pytest.mark.parametrize("instruction", MMA_SYNC, ids=_IDS)
def test_assembler_agrees_on_operands_and_targets(instruction: MmaInstruction) -> None:
    """The assembler takes the instruction where a target has its feature (it knows sm_75 and newer), and not before."""
    oldest = _oldest(instruction)
    assert _assembles(instruction, max(oldest, 75))
    before = {80: 75, 89: 87, 90: 89}.get(oldest)
    assert before is None or not _assembles(instruction, before)


@pytest.mark.parametrize(
    ("target", "kinds"),
    [
        ("sapphirerapids", {"bf16", "int8"}),
        ("graniterapids", {"bf16", "int8", "fp16"}),
        ("x86-64-v4", set()),
        ("sm_80", {"fp16", "bf16", "tf32", "int8", "fp64"}),
    ],
)
def test_targets_say_what_their_matrix_units_multiply(target: str, kinds: set[str]) -> None:
    found = target_named(target).capabilities()["tensorcore"]
    assert {kind for kind, has_unit in found.items() if has_unit} == kinds
