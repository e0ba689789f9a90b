"""Code of launches that share out steps: what moves, and in which order it is made visible."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tessera.backends.nvidia import compile_nvidia
from tessera.ir.target.structure import FuncOp
from tessera.lower.simt import lower_to_simt
from tessera.target.registry import target_named
from tests.unit.schedule.hopper.kernels import gemm, gemm_wide, note, scheduled
from tests.unit.schedule.hopper.test_split_k import gated

HOPPER = target_named("sm_90a")
SIZES = {"M": 256, "N": 256, "K": 256}


def compiled(function: Any, **knobs: int | None) -> tuple[FuncOp, str]:
    module = lower_to_simt(scheduled(function, SIZES, **knobs), HOPPER)
    (func,) = [op for op in module.ops if isinstance(op, FuncOp)]
    code = compile_nvidia(module, HOPPER)
    (facts,) = code.reflection["kernels"].values()
    assert facts["spill_store_bytes"] == facts["spill_load_bytes"] == 0
    ptx = code.dumps["ptx"]
    assert isinstance(ptx, str)
    return func, ptx


@pytest.mark.parametrize(("function", "elements"), [(gemm, 64 * 64), (gemm_wide, 64 * 128), (gated, 2 * 64 * 64)])
def test_partial_sums_move_in_sixteen_bytes_and_flags_are_ordered(function: Any, elements: int) -> None:
    func, ptx = compiled(function, stream_k=1)
    accesses = elements // 128 // 4
    assert len(re.findall(r"ld\.global\.cg\.v4\.b32", ptx)) == (4 + 2 + 1) * accesses
    assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == accesses
    assert ptx.count("ld.acquire.gpu") == 1
    release, load = ptx.index("st.release.gpu"), ptx.index("ld.global.cg")
    assert ptx.rindex("st.global.v4", 0, release) < ptx.rindex("bar.sync 1", 0, release)
    assert release < ptx.rindex("bar.sync 1", 0, load)
    (workspace,) = [param for param in func.parameters if param.kind == "workspace"]
    assert workspace.slot_bytes == 4 * elements


def test_a_launch_that_is_not_persistent_has_no_workspace_and_says_so() -> None:
    func, ptx = compiled(gemm, stream_k=1, stages=1)
    assert "ld.acquire" not in ptx
    assert all(param.kind != "workspace" for param in func.parameters)
    notes: Any = func.attributes["tessera_notes.stream_k"]
    assert "not persistent" in notes.data[0].data


def test_nothing_is_shared_unless_asked_for() -> None:
    func, ptx = compiled(gemm)
    assert "ld.acquire" not in ptx
    assert all(param.kind != "workspace" for param in func.parameters)
    assert note(scheduled(gemm, SIZES), "stream_k") == ""
