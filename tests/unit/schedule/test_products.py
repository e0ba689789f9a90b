"""Which instructions compute a product: what plans are told is what the passes and the lowering then do."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tessera as ts
from tessera.ops.linalg.gemm import gemm
from tessera.ops.linalg.prepare import EMPTY, sized
from tessera.ops.linalg.problem import Options
from tessera.schedule.products import (
    MatrixProduct,
    Operand,
    path_of,
    why_no_instruction,
    why_no_registers,
    why_no_turns,
)
from tessera.target.registry import target_named

PRODUCTS: dict[str, tuple[tuple[int, int, int], Any, dict[str, Any]]] = {
    "bf16": ((256, 128, 128), ts.bf16, {}),
    "f16, transposed": ((256, 128, 128), ts.f16, {"trans_a": True, "trans_b": True}),
    "rows of 200 bytes": ((256, 100, 128), ts.bf16, {}),
    "odd rows": ((100, 77, 33), ts.bf16, {}),
    "f64 sums": ((128, 128, 128), ts.bf16, {"acc_dtype": ts.f64, "out_dtype": ts.f32}),
    "f16 sums": ((128, 128, 128), ts.f16, {"acc_dtype": ts.f16}),
    "fp8 along K": ((128, 128, 256), ts.fp8_e4m3, {"trans_b": True}),
    "fp8 across K": ((128, 128, 256), ts.fp8_e4m3, {}),
    "i8 along K": ((128, 128, 256), ts.i8, {"trans_b": True}),
    "i8 across K": ((128, 128, 256), ts.i8, {}),
    "f32": ((128, 128, 64), ts.f32, {}),
    "tf32": ((128, 128, 64), ts.f32, {"compute": ts.tf32}),
    "f64": ((64, 64, 64), ts.f64, {}),
}


@pytest.mark.parametrize("target", ["sm_70", "sm_80", "sm_90", "sm_90a"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_path_is_the_one_that_is_compiled(name: str, target: str) -> None:
    sizes, dtype, options = PRODUCTS[name]
    problem = sized(*sizes, dtype, dtype, Options(**options), EMPTY)
    chosen = path_of(problem.product, target_named(target))
    assert gemm.plan(*sizes, dtype, target=target, pack=False, **options).path == chosen.path
    text = gemm.compile(*sizes, dtype, target=target, pack=False, dump=("tirt",), **options).dumps["tirt"]
    used = set(re.findall(r'tensor_core\w* "([a-z]+)', str(text)))
    assert used == {NAMES[chosen.path]}
    paths = ["wgmma", "mma", "fma"]
    assert list(chosen.refused) == paths[: paths.index(chosen.path)]


NAMES = {"wgmma": "wgmma", "mma": "m", "fma": "fma"}
"""What the names of instructions begin with: `m16n8k16_bf16_bf16_f32` is one of a single warp."""


def operand(name: str, dtype: Any, contiguous: Any = "k", aligned: bool = True) -> Operand:
    return Operand(name, dtype, contiguous, aligned)


@pytest.mark.parametrize(
    ("a", "b", "acc", "target", "path", "reasons"),
    [
        (operand("a", ts.bf16), operand("b", ts.bf16, "other"), ts.f32, "sm_90a", "wgmma", []),
        (operand("a", ts.bf16), operand("b", ts.bf16), ts.f32, "sm_80", "mma", ["sm_80 has no bulk copies"]),
        (operand("a", ts.bf16, aligned=False), operand("b", ts.bf16), ts.f32, "sm_90a", "mma", ["a has no contiguous"]),
        (operand("a", ts.bf16), operand("b", ts.bf16, "strided"), ts.f32, "sm_90a", "mma", ["b has no contiguous"]),
        (operand("a", ts.i8), operand("b", ts.i8, "other"), ts.i32, "sm_90a", "mma", ["8-bit operands are read along"]),
        (
            operand("a", ts.bf16),
            operand("b", ts.bf16),
            ts.f64,
            "sm_90a",
            "fma",
            ["no warpgroup instruction for bf16 x bf16 -> f64", "sm_90a has no instruction for bf16 x bf16 -> f64"],
        ),
    ],
)
def test_reasons(a: Operand, b: Operand, acc: Any, target: str, path: str, reasons: list[str]) -> None:
    chosen = path_of(MatrixProduct(a, b, acc), target_named(target))
    assert chosen.path == path
    assert len(chosen.refused) == len(reasons)
    assert all(text.startswith(start) for text, start in zip(chosen.refused.values(), reasons, strict=True))


def test_tiles_of_warpgroups() -> None:
    assert why_no_instruction("bf16", "bf16", "f32", (128, 256, 64)) is None
    for shape in ((32, 64, 64), (64, 96, 64), (64, 64, 8), (192, 64, 64)):
        reason = why_no_instruction("bf16", "bf16", "f32", shape)
        assert reason is not None
        assert reason.startswith("a product of {}x{}x{}: rows in 64s".format(*shape))
    assert why_no_instruction("bf16", "bf16", "f32", (64, 512, 64)) == (
        "no warpgroup instruction for bf16 x bf16 -> f32 with 512 columns"
    )


def test_plans_say_which_blocks_no_warpgroup_takes() -> None:
    notes = gemm.plan(512, 512, 512, target="sm_90a", block=(32, 32, 64)).notes
    assert any(note.startswith("block: no warpgroup instructions, a product of 32x32x64") for note in notes)
    assert not any("block: no" in note for note in gemm.plan(512, 512, 512, target="sm_90a", block=(64, 64, 64)).notes)


def test_groups_that_take_turns_have_four_warps() -> None:
    assert why_no_turns(None, False) is why_no_turns(4, False) is None
    assert why_no_turns(8, False) == "num_warps=8 was asked for, and a group has 4"
    assert why_no_turns(None, True) == "programs share a tile's loop over K"
    plan = gemm.plan(8192, 8192, 1024, target="sm_90a", num_warps=8, ping_pong=True)
    assert not plan.ping_pong
    assert plan.num_warps == 8
    assert "ping_pong: without effect, num_warps=8 was asked for, and a group has 4" in plan.notes


@pytest.mark.parametrize(("tile", "warps", "heaviest"), [((128, 256), 8, 0), ((128, 128), 8, 1), ((64, 64), 4, 2)])
def test_sums_and_what_an_epilogue_needs_share_the_registers(tile: tuple[int, int], warps: int, heaviest: int) -> None:
    """A thread has 128 registers for sums where little else is needed, and half as many with each weight."""
    sums = tile[0] * tile[1]
    reasons = [why_no_registers(sums, warps, weight) for weight in range(3)]
    assert [reason is None for reason in reasons] == [weight <= heaviest for weight in range(3)]
    assert all(f"{sums} sums of {warps} warps" in reason for reason in reasons if reason is not None)
    per_thread = sums // (32 * warps)
    assert 128 >> heaviest >= per_thread > 128 >> (heaviest + 1)
