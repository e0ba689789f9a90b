"""SIMT lowering: layouts, instruction choice, facts about indices, access widths."""

from __future__ import annotations

import math
from typing import Any

import pytest

import tessera as ts
from tessera.errors import ResourceError
from tessera.ir.target.memory import LdmatrixOp, LoadOp, MemcpyOp, StoreOp
from tessera.ir.target.structure import FuncOp
from tessera.ir.target.tensor_core import TensorCoreOp
from tessera.ir.target.types import FragmentType
from tessera.lower.simt.mma import split_warps
from tessera.lower.simt.placement import Placements, padded
from tessera.target.registry import target_named
from tests.unit.lower.support import lowered


def ops(func: FuncOp, kind: type[Any]) -> list[Any]:
    return [op for op in func.walk() if isinstance(op, kind)]


def test_padded_is_the_next_power_of_two() -> None:
    assert [padded(n) for n in (1, 2, 3, 48, 64, 65)] == [1, 2, 4, 64, 64, 128]


@pytest.mark.parametrize("shape", [(1024,), (64, 128), (4, 1024), (3, 80), (1, 1), (2, 8, 64)])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_default_layout_holds_every_element_and_neighbours_lanes(shape: tuple[int, ...], warps: int) -> None:
    layout = Placements(target_named("sm_80"), warps).default(shape)
    assert layout.is_surjective
    assert layout.lanes == 32
    assert layout.warps == warps
    last = len(shape) - 1
    run = layout.contiguous_per_thread(last)
    if layout.out_sizes[last] > run:
        assert layout.apply(lane=1)[last] == run


@pytest.mark.parametrize(
    ("rows", "bytes_", "along"),
    [(8, 32, 32), (16, 32, 16), (32, 32, 8), (64, 32, 4), (256, 32, 2), (256, 128, 8), (256, 16, 1)],
)
def test_lanes_share_a_row_that_is_reduced_as_far_as_warps_have_other_rows_and_bytes_lie_together(
    rows: int, bytes_: int, along: int
) -> None:
    shape, bf16 = (rows, 256), 2
    placements = Placements(target_named("sm_80"), 8, {shape: bf16}, reduced={(shape, 1): bytes_})
    layout = placements.default(shape)
    assert layout.is_surjective
    lanes = [layout.apply(lane=lane) for lane in range(32)]
    assert len({row for row, _ in lanes}) == 32 // along
    assert {column for row, column in lanes if row == lanes[0][0]} == {8 * lane for lane in range(along)}


@pytest.mark.parametrize(
    ("warps", "m", "n", "rows_only", "expected"),
    [
        (4, 128, 128, False, (2, 2)),
        (8, 128, 256, False, (2, 4)),
        (8, 128, 64, True, (8, 1)),
        (4, 16, 128, False, (1, 4)),
    ],
)
def test_warps_split_a_product_where_operands_are_read_least(
    warps: int, m: int, n: int, rows_only: bool, expected: tuple[int, int]
) -> None:
    assert split_warps(warps, m, n, (16, 8), rows_only) == expected


def product(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 64, k : k + 32], b[k : k + 32, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def fp8_product(
    a: ts.Tensor["M", 64, ts.fp8_e4m3], b: ts.Tensor[64, "N", ts.fp8_e4m3], c: ts.Tensor["M", "N", ts.f32]
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        c[m : m + 64, n : n + 64] = ts.tile.mma(a[m : m + 64, :], b[:, n : n + 64], accumulator=ts.f32)


@pytest.mark.parametrize(
    ("function", "target", "instruction", "note"),
    [
        (product, "sm_90a", "m16n8k16_bf16_bf16_f32", None),
        (product, "sm_80", "m16n8k16_bf16_bf16_f32", None),
        (product, "sm_75", "fma", "emulated with fma"),
        (fp8_product, "sm_90a", "m16n8k32_fp8_e4m3_fp8_e4m3_f32", None),
        (fp8_product, "sm_80", "m16n8k16_f16_f16_f32", "through f16"),
        (fp8_product, "sm_75", "m16n8k8_f16_f16_f32", "through f16"),
    ],
)
def test_the_target_decides_the_instruction_and_fallbacks_are_noted(
    function: Any, target: str, instruction: str, note: str | None
) -> None:
    func = lowered(function, target)
    assert {op.instruction.data for op in ops(func, TensorCoreOp)} == {instruction}
    notes = func.attributes.get("tessera_notes.emulations") or func.attributes.get("tessera_notes.fallbacks")
    assert (note is None) == (notes is None)
    if note is not None:
        assert note in str(notes)


def test_operands_come_by_ldmatrix_where_the_target_has_it() -> None:
    loads = ops(lowered(product, "sm_80"), LdmatrixOp)
    assert {op.transposed.data for op in loads} == {0, 1}, "A row by row, B stored (k, n) transposed"
    assert not ops(lowered(product, "sm_70"), LdmatrixOp)


@pytest.mark.parametrize(("target", "engine"), [("sm_80", "cp.async"), ("sm_75", "plain")])
def test_copies_are_asynchronous_where_the_target_has_them(target: str, engine: str) -> None:
    copies = ops(lowered(product, target, sizes={"M": 64, "N": 64, "K": 64}), MemcpyOp)
    assert {op.engine.data for op in copies} == {engine}


def rows(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", "N", ts.f32]) -> None:
    for m in ts.tile.grid((M, 4)):
        y[m : m + 4, :] = x[m : m + 4, :] - ts.tile.row_max(x[m : m + 4, :])[:, None]


def test_rows_known_to_fit_are_not_checked_and_others_are() -> None:
    func = lowered(rows, sizes={"M": 12, "N": 96})
    for load in ops(func, LoadOp):
        assert 1 in load.checked_list, "96 columns are padded to 128"
    func = lowered(rows, sizes={"M": 12, "N": 128})
    assert all(1 not in load.checked_list for load in ops(func, LoadOp))


def attention(
    q: ts.Tensor["S", 64, ts.bf16],
    k: ts.Tensor["S", 64, ts.bf16],
    v: ts.Tensor["S", 64, ts.bf16],
    o: ts.Tensor["S", 64, ts.bf16],
) -> None:
    for m in ts.tile.grid((S, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        total = ts.tile.zeros((64,), ts.f32)
        query = q[m : m + 64, :]
        for n in ts.tile.range(0, S, 64):
            p = ts.tile.exp(ts.tile.mma(query, k[n : n + 64, :].T, accumulator=ts.f32) * (1 / math.sqrt(64)))
            total = total + ts.tile.row_sum(p)
            acc = ts.tile.mma(ts.tile.cast(p, ts.bf16), v[n : n + 64, :], acc)
        o[m : m + 64, :] = acc / total[:, None]


def test_probabilities_stay_in_registers_between_the_two_products() -> None:
    func = lowered(attention)
    loop = next(op for op in func.walk() if op.name == "scf.for")
    inside = [op for op in loop.walk()]
    assert not [op for op in inside if op.name == "tessera_target.buffer_store"]
    carried = [r.type for r in loop.results if isinstance(r.type, FragmentType)]
    assert {t.shape for t in carried} == {(64, 64), (64,)}


def huge(x: ts.Tensor["M", "N", ts.f32], y: ts.Tensor["M", "N", ts.f32]) -> None:
    for m in ts.tile.grid((M, 1)):
        y[m, :] = x[m, :] - ts.tile.row_max(x[m, :])


def test_a_tile_beyond_all_registers_is_an_error_at_its_line() -> None:
    with pytest.raises(ResourceError, match=r"1048576 f32 is 2048 elements a thread in 16 warps") as caught:
        lowered(huge, sizes={"M": 1, "N": 10**6})
    assert caught.value.code == "tile-too-large"
    assert caught.value.location is not None


def turned(a: ts.Tensor["K", "M", ts.bf16], b: ts.Tensor["M", "K", ts.bf16]) -> None:
    for m, k in ts.tile.grid((M, 64), (K, 64)):
        b[m : m + 64, k : k + 64] = a[k : k + 64, m : m + 64].T


@pytest.mark.parametrize(("size", "access"), [(4096, 8), (4100, 4), (4098, 2), (4097, 1)])
@pytest.mark.parametrize("columns", [False, True])
def test_neighbouring_lanes_load_neighbours_in_memory(columns: bool, size: int, access: int) -> None:
    strides = {"a": (1, size) if columns else (size, 1)}
    (load,) = ops(lowered(turned, sizes={"M": size, "K": size}, strides=strides), LoadOp)
    layout = load.result.type.linear
    fast = 0 if columns else 1
    assert load.vector.data == layout.contiguous_per_thread(fast) == access
    step = [0, 0]
    step[fast] = access
    assert list(layout.apply(lane=1)) == step


def rounded(a: ts.Tensor["M", "K", ts.bf16], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.bf16]) -> None:
    for m, n in ts.tile.grid((M, 128), (N, 128)):
        acc = ts.tile.zeros((128, 128), ts.f32)
        for k in ts.tile.range(0, K, 32):
            acc = ts.tile.mma(a[m : m + 128, k : k + 32], b[k : k + 32, n : n + 128], acc)
        c[m : m + 128, n : n + 128] = acc


def by_threads(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["K", "N", ts.f32], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 128), (N, 64)):
        acc = ts.tile.zeros((128, 64), ts.f32)
        for k in ts.tile.range(0, K, 8):
            acc = ts.tile.mma(a[m : m + 128, k : k + 8], b[k : k + 8, n : n + 64], acc)
        c[m : m + 128, n : n + 64] = acc


@pytest.mark.parametrize(
    ("function", "n", "run"),
    [(rounded, 4096, 8), (rounded, 4095, 1), (by_threads, 4095, 1)],
)
def test_neighbouring_lanes_store_neighbours_of_a_product(function: Any, n: int, run: int) -> None:
    func = lowered(function, sizes={"M": 4096, "N": n, "K": 4096})
    (store,) = ops(func, StoreOp)
    layout = store.value.type.linear
    assert list(layout.apply(lane=1)) == [0, run]
    assert store.vector.data == run
