"""Which copies say that their data is fetched once: counted over the grid, box by box."""

from __future__ import annotations

import operator
import re
from typing import Any

import pytest
from xdsl.ir import BlockArgument, SSAValue

import tessera as ts
from tessera.ir.tile.elementwise import ConstantOp, ElementwiseOp
from tessera.ir.tile.roles import BulkCopyOp
from tessera.ir.tile.structure import DimOp
from tests.unit.schedule.hopper.kernels import gemm, scheduled


def grouped_heads(
    q: ts.Tensor["H", "S", 64, ts.bf16],
    k: ts.Tensor["G", "T", 64, ts.bf16],
    o: ts.Tensor["H", "S", "T", ts.f32],
) -> None:
    for h, s, t in ts.tile.grid((H, 1), (S, 64), (T, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for d in ts.tile.range(0, 64, 64):
            acc = ts.tile.mma(q[h, s : s + 64, d : d + 64], k[h // 4, t : t + 64, d : d + 64].T, acc)
        o[h, s : s + 64, t : t + 64] = acc


def overlapping(
    a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 32), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def batched(
    a: ts.Tensor["B", "M", "K", ts.bf16],
    b: ts.Tensor["B", "K", "N", ts.bf16],
    c: ts.Tensor["B", "M", "N", ts.f32],
) -> None:
    for i, m, n in ts.tile.grid((B, 1), (M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[i, m : m + 64, k : k + 64], b[i, k : k + 64, n : n + 64], acc)
        c[i, m : m + 64, n : n + 64] = acc


def value_of(value: SSAValue, sizes: dict[str, tuple[int, ...]], names: list[str]) -> Any:
    """Compute a scalar of the program from the tensors' sizes."""
    owner = value.owner
    if isinstance(owner, ConstantOp):
        return owner.python_value
    if isinstance(owner, DimOp):
        assert isinstance(owner.tensor, BlockArgument)
        return sizes[names[owner.tensor.index]][owner.axis.data]
    assert isinstance(owner, ElementwiseOp)
    a, b = (value_of(operand, sizes, names) for operand in owner.operands)
    return {"le": operator.le, "and": operator.and_}[owner.fn.data](a, b)


def said(kernel: Any, sizes: dict[str, tuple[int, ...]], **knobs: int) -> dict[str, bool]:
    """Return what the copies of each tensor say, for tensors of the given sizes."""
    names = list(kernel.__annotations__)
    found: dict[str, bool] = {}
    for op in scheduled(kernel, dict.fromkeys("BGHKMNST", 512), **knobs).walk():
        if isinstance(op, BulkCopyOp):
            assert isinstance(op.tensor, BlockArgument)
            assert op.once is not None
            found[names[op.tensor.index]] = value_of(op.once, sizes, names)
    return found


@pytest.mark.parametrize(
    ("m", "n", "expected"),
    [
        (64, 4096, {"a": False, "b": True}),
        (65, 4096, {"a": False, "b": False}),
        (1, 64, {"a": True, "b": True}),
        (4096, 64, {"a": True, "b": False}),
    ],
)
def test_an_operand_is_fetched_once_where_the_other_has_one_tile(m: int, n: int, expected: dict[str, bool]) -> None:
    assert said(gemm, {"a": (m, 256), "b": (256, n), "c": (m, n)}) == expected


def test_each_matrix_of_a_batch_has_its_own_tiles() -> None:
    sizes = {"a": (9, 64, 256), "b": (9, 256, 512), "c": (9, 64, 512)}
    assert said(batched, sizes) == {"a": False, "b": True}


def test_what_several_heads_share_is_fetched_for_each() -> None:
    sizes = {"q": (8, 64, 64), "k": (2, 64, 64), "o": (8, 64, 64)}
    assert said(grouped_heads, sizes) == {"q": True, "k": False}


def test_boxes_that_overlap_are_fetched_more_than_once() -> None:
    sizes = {"a": (64, 256), "b": (256, 64), "c": (64, 64)}
    assert said(overlapping, sizes) == {"a": False, "b": False}


@pytest.mark.parametrize(("m", "b_once"), [(128, True), (129, False)])
def test_the_programs_of_a_cluster_have_boxes_of_their_own(m: int, b_once: bool) -> None:
    sizes = {"a": (m, 256), "b": (256, 64), "c": (m, 64)}
    assert said(gemm, sizes, cluster=2) == {"a": True, "b": b_once}


def test_only_data_that_is_fetched_once_may_leave_the_cache_first() -> None:
    sizes = {"M": 512, "N": 512, "K": 512}
    kernel = ts.kernel.autotune(space={"fit_blocks": [0]})(gemm)
    found = ts.compile(kernel, target="sm_90a", dims=sizes, dump=["ptx"]).dumps["ptx"]
    copies = re.findall(r"selp\.b64 policy, (\d+), (\d+), .*cp\.async\.bulk\.tensor.*L2::cache_hint.*, policy;", found)
    assert copies == [(str(0x12F0000000000000), str(0x1000000000000000))] * 2
