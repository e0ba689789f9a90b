"""The machine that computes all threads in step: what it agrees with, and the faults of a lowering that it finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import IntAttr

import tessera as ts
from tessera.ir.target.arithmetic import ReduceLanesOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.text import parse_module
from tessera.tools.fuzz import tree
from tessera.tools.fuzz.arrays import Guarded, placed
from tessera.tools.fuzz.generate import generate
from tessera.tools.fuzz.generate_scope import Options
from tessera.tools.fuzz.in_step import Fault, Unknown, run_launch
from tessera.tools.fuzz.threads import computed

M, N = 12, 200


@ts.kernel
def sums(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 4)):
        y[i : i + 4] = ts.tile.sum(x[i : i + 4, 0:200], 1)


@ts.kernel
def total(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.f32]):
    y[0] = ts.tile.sum(x[0:4, 0:200])


@ts.kernel
def counted(x: ts.Tensor["m", "n", ts.f32], y: ts.Tensor["m", ts.f32]):
    ts.tile.atomic_add(y[0:4], ts.tile.sum(x[0:4, 0:200], 1))


def lowered(kernel: Any = sums) -> FuncOp:
    text = ts.compile(kernel, target="sm_80", dims={"m": M, "n": N}, dump=["tirt"]).dumps["tirt"]
    return next(op for op in parse_module(text).walk() if isinstance(op, FuncOp))


def arguments() -> dict[int, Guarded]:
    x = np.random.default_rng(0).integers(-8, 8, (M, N)).astype(np.float32)
    dense = [tree.Layout(tuple(range(rank)), (1,) * rank) for rank in (2, 1)]
    return {0: placed(x, dense[0]), 1: placed(np.full(M, np.nan, np.float32), dense[1])}


def test_sums_are_those_of_numpy() -> None:
    given = arguments()
    run_launch(lowered(), given, {})
    np.testing.assert_array_equal(given[1].view, given[0].view.sum(1))
    assert not given[1].overrun()


def test_an_exchange_with_the_wrong_lane_gives_other_sums() -> None:
    func, given = lowered(), arguments()
    first = next(op for op in func.walk() if isinstance(op, ReduceLanesOp))
    first.properties["mask"] = IntAttr(first.mask.data ^ 3)
    run_launch(func, given, {})
    assert (given[1].view != given[0].view.sum(1)).any()


def test_threads_that_hold_different_scalars_are_a_fault() -> None:
    func = lowered(total)
    for op in [op for op in func.walk() if isinstance(op, ReduceLanesOp)]:
        op.result.replace_all_uses_with(op.source)
        op.detach()
    with pytest.raises(Fault, match=r"threads (hold|write) different"):  # in one warp, and where warps exchange sums
        run_launch(func, arguments(), {})


def test_an_op_that_it_does_not_know_is_no_result() -> None:
    with pytest.raises(Unknown, match="atomic"):
        run_launch(lowered(counted), arguments(), {})


@pytest.mark.parametrize("seed", range(6))
def test_random_programs_mean_what_threads_compute(seed: int, tmp_path) -> None:
    outcome = computed(generate(seed), tmp_path)
    assert outcome.kind in ("same", "skipped", "refused"), outcome.detail


def test_assembly_computes_what_it_means(tmp_path):
    drawn = (generate(seed, Options(small=1, assembly=1)) for seed in range(60))
    some = [one for one in drawn if any(isinstance(node, tree.Assembly) for node in tree.walk(one))][:4]
    found = [computed(one, tmp_path).kind for one in some]
    assert len(found) == 4
    assert set(found) <= {"same", "skipped"}
    assert "same" in found
