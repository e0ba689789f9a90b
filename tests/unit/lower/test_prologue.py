"""SIMT lowering of operands computed from raw tiles: layouts, conversions, and what the assembler says of them."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.dialects import scf

import tessera as ts
from tessera.driver.pipeline import schedule_passes
from tessera.ir.layouts import bank_conflicts
from tessera.ir.target.memory import BarrierOp, BufferLoadOp, LdmatrixOp
from tessera.ir.target.roles import RolesOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import BufferType, FragmentType
from tessera.lower.simt import lower_to_simt
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.lower.support import aligned
from tests.unit.schedule.hopper import prologues
from tests.unit.schedule.hopper.prologues import CASES, Case

HOPPER = target_named("sm_90a")
SIZES = {"M": 4096, "N": 4096, "K": 4096, "S": 32}
SHORT = ("int8_left", "int8_left_transposed", "fp8_left", "scaled_left", "int8_both")
"""Cases whose operands need not be panels along K."""
LEFT = [case for case in CASES if not case.staged]


def lowered(case: Case) -> FuncOp:
    module = aligned(case.kernel, SIZES)
    for step in schedule_passes(HOPPER, Knobs()):
        step.apply(module)
    (func,) = [op for op in lower_to_simt(module, HOPPER).ops if isinstance(op, FuncOp)]
    func.verify()
    return func


def loop_of(func: FuncOp) -> scf.ForOp:
    """Return the consumers' loop with the product."""
    (roles,) = [op for op in func.walk() if isinstance(op, RolesOp)]
    (loop,) = [
        op
        for op in roles.consumer.walk()
        if isinstance(op, scf.ForOp) and any(isinstance(inner, TensorCoreOp) for inner in op.body.block.ops)
    ]
    return loop


@pytest.mark.parametrize("case", LEFT, ids=str)
def test_warpgroups_do_not_wait_for_each_other_in_the_loop(case: Case) -> None:
    loop = loop_of(lowered(case))
    assert not [op for op in loop.walk() if isinstance(op, BarrierOp)]
    (product,) = [op for op in loop.walk() if isinstance(op, TensorCoreOp)]
    assert isinstance(product.a.type, FragmentType)
    assert isinstance(product.b.type, BufferType)


@pytest.mark.parametrize(
    ("case", "depth"),
    [(case, depth) for case in CASES for depth in (32, 64, 128) if depth > 32 or str(case) in SHORT],
    ids=str,
)
def test_reads_of_raw_tiles_meet_no_bank_conflict(case: Case, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologues, "BK", depth)
    loads = [op for op in loop_of(lowered(case)).walk() if isinstance(op, BufferLoadOp | LdmatrixOp)]
    assert len(loads) >= case.copies - 1
    for op in loads:
        buffer, fragment = op.buffer.type, op.result.type
        assert isinstance(buffer, BufferType)
        assert isinstance(fragment, FragmentType)
        if isinstance(op, BufferLoadOp):
            assert bank_conflicts(fragment.linear, buffer.shared_layout(), buffer.dtype.bytes) == 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_assemble_without_spills(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologues, "BN", 128)
    dims = {name: size for name, size in SIZES.items() if name != "S" or case.kernel.__name__ == "scaled_left"}
    artifact = ts.compile(ts.kernel(case.kernel), target="sm_90a", dump=["ptx"], dims=dims)
    (facts,) = artifact.reflection["kernels"].values()
    assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
    assert artifact.reflection["instructions"]["wgmma"] == 4
    assert artifact.reflection["schedule"]["stages"] >= 3


@pytest.mark.parametrize("case", [case for case in CASES if str(case) in SHORT], ids=str)
def test_wide_tiles_leave_registers_where_steps_are_short(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologues, "BN", 256)
    monkeypatch.setattr(prologues, "BK", 32)
    dims = {name: size for name, size in SIZES.items() if name != "S" or case.kernel.__name__ == "scaled_left"}
    kernel = ts.kernel.autotune(space={"terms": [32]})(case.kernel)
    artifact = ts.compile(kernel, target="sm_90a", dims=dims)
    (facts,) = artifact.reflection["kernels"].values()
    assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
    assert artifact.reflection["instructions"]["wgmma"] == 2


@pytest.mark.parametrize(
    ("name", "instruction", "never"),
    [
        ("int8_left", "fma.rn.bf16x2", "cvt.rn.bf16"),
        ("u8_left", "fma.rn.f16x2", "cvt.rn.f16"),
        ("fp8_left", "cvt.rn.f16x2.e4m3x2", "mul.rn.f32"),
        ("scaled_left", "prmt.b32", "cvt.rn.f32.s"),
    ],
)
def test_bytes_are_converted_in_pairs(name: str, instruction: str, never: str) -> None:
    (case,) = [case for case in CASES if str(case) == name]
    dims = {size: value for size, value in SIZES.items() if size != "S" or name == "scaled_left"}
    ptx: Any = ts.compile(ts.kernel(case.kernel), target="sm_90a", dump=["ptx"], dims=dims).dumps["ptx"]
    loop = ptx[: ptx.index("wgmma.fence")]
    assert loop.count(instruction) >= 16
    assert never not in loop
