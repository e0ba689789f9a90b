"""Operands computed from what the loop loads: fetched like operands, read by threads, staged where they must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects import scf

import tessera as ts
from tessera.errors import DeviceError
from tessera.interp import interpret
from tessera.ir.tile import roles, shared
from tessera.ir.tile.memory import LoadOp
from tessera.ir.tile.mma import MmaOp
from tests.unit.interp.test_roles import EARLY, SEEDS, Change, arrive_before_reading, drop, drop_wait
from tests.unit.schedule.hopper import prologues
from tests.unit.schedule.hopper.kernels import has_roles, note, scheduled, specialized
from tests.unit.schedule.hopper.prologues import (
    CASES,
    Case,
    int8_both,
    int8_left,
    int8_right_with_row_sums,
    reference,
    scaled_left,
)


def ops(module: Any, kind: type[Any]) -> list[Any]:
    return [op for op in module.walk() if isinstance(op, kind)]


def sizes(m: int, n: int, k: int) -> dict[str, int]:
    return {"M": m, "N": n, "K": k, "S": -(-k // 128)}


def check(case: Case, m: int, n: int, k: int, change: Change | None = None, **options: Any) -> None:
    """Run a case in the interpreter and compare it with float64."""
    knobs = {name: options.pop(name) for name in ("stages", "cluster", "split_k") if name in options}
    module = scheduled(case.kernel, sizes(m, n, k), **knobs)
    assert has_roles(module)
    if change is not None:
        change(module)
        module.verify()
    arrays = case.arrays(np.random.default_rng(m + n + k), m, n, k)
    c = np.full((m, n), np.nan, np.float32)
    interpret(module, [*arrays, c], **options)
    expected = reference(case, arrays)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_fetched_and_who_reads_it(case: Case) -> None:
    module = specialized(case.kernel, sizes(256, 128, 512))
    assert len(ops(module, roles.BulkCopyOp)) == case.copies
    assert len(ops(module, shared.SharedStoreOp)) == len(ops(module, shared.ProxyFenceOp)) == case.staged
    products = ops(module, MmaOp)
    assert all("tessera_schedule.warpgroup" in op.attributes for op in products)
    assert all(isinstance(op.b.type, shared.SharedType) for op in products)
    (copies,) = ops(module, roles.BarrierExpectOp)
    buffers = [op.buffer.type for op in ops(module, roles.BulkCopyOp)]
    assert copies.bytes.data == sum(int(np.prod(t.shape)) * t.dtype.bytes for t in buffers)


@pytest.mark.parametrize("size", [(128, 64, 64), (80, 48, 208), (16, 112, 336), (144, 16, 16)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_equal_float64(case: Case, size: tuple[int, int, int]) -> None:
    check(case, *size)


@pytest.mark.parametrize("case", [c for c in CASES if c.kernel in (int8_left, scaled_left, int8_both)], ids=str)
def test_short_steps(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologues, "BK", 32)
    check(case, 144, 80, 208)


@pytest.mark.parametrize("knobs", [{"cluster": 2}, {"split_k": 2}], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_in_clusters(case: Case, knobs: dict[str, int]) -> None:
    check(case, 400, 80, 208, **knobs)


def test_a_staged_operand_of_no_whole_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologues, "BK", 32)
    monkeypatch.setattr(prologues, "BN", 32)
    module = specialized(int8_both, sizes(128, 128, 128))
    assert not has_roles(module)
    assert "a computed operand of 32x32 has no rows or columns of a multiple of 128 bytes" in note(module)


@pytest.mark.parametrize(("rows", "shape"), [(128, (128, 64)), (64, (64, 64)), (32, (64, 32))])
def test_a_product_of_reduced_rows_is_transposed_only_where_warpgroups_have_too_few_of_them(
    rows: int, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prologues, "BM", rows)
    module = specialized(int8_right_with_row_sums, sizes(128, 128, 128))
    assert [op.result.type.shape for op in ops(module, MmaOp)] == [shape]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", [c for c in CASES if c.kernel in (scaled_left, int8_both)], ids=str)
def test_any_interleaving_gives_the_product(case: Case, seed: int | None) -> None:
    check(case, 144, 80, 336, order_seed=seed, stages=2)


def drop_barrier(which: int) -> Change:
    def change(module: Any) -> None:
        ops(module, shared.BarrierOp)[which].detach()

    return change


def fence_before_the_store(module: Any) -> None:
    (fence,) = ops(module, shared.ProxyFenceOp)
    store = fence.prev_op
    assert isinstance(store, shared.SharedStoreOp)
    fence.detach()
    store.parent.insert_op_before(fence, store)


def fence_after_the_barrier(module: Any) -> None:
    (fence,) = ops(module, shared.ProxyFenceOp)
    barrier = fence.next_op
    assert isinstance(barrier, shared.BarrierOp)
    fence.detach()
    barrier.parent.insert_op_after(fence, barrier)


BOTH, LEFT = (next(c for c in CASES if c.kernel is kernel) for kernel in (int8_both, int8_left))


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        pytest.param(LEFT, arrive_before_reading, "was read after|without having waited", id="early release"),
        pytest.param(LEFT, drop_wait("consumer"), "is under way|nothing was written", id="no full wait"),
        pytest.param(LEFT, drop_wait("producer"), "at barrier|read after|copied", id="no empty wait"),
        pytest.param(BOTH, drop(shared.ProxyFenceOp), "no proxy fence", id="no fence"),
        pytest.param(BOTH, fence_before_the_store, "no proxy fence", id="early fence"),
        pytest.param(BOTH, fence_after_the_barrier, "no proxy fence", id="late fence"),
        pytest.param(BOTH, drop_barrier(1), "written after the last barrier", id="no barrier after the store"),
        pytest.param(BOTH, drop_barrier(0), "read after the last barrier", id="no barrier before the store"),
        pytest.param(BOTH, arrive_before_reading, "was read after|without having waited", id="both: early release"),
    ],
)
def test_what_is_wrong_is_reported(case: Case, change: Change, message: str, seed: int | None) -> None:
    with pytest.raises(DeviceError, match=message) as caught:
        check(case, 128, 64, 640, change, order_seed=seed, stages=3)
    assert caught.value.code in {"race", *EARLY}


def test_a_small_load_that_cannot_be_copied_comes_one_iteration_ahead() -> None:
    module = specialized(scaled_left, sizes(256, 128, 512))
    (split,) = ops(module, roles.RolesOp)
    (loop,) = [op for op in ops(split.consumer, scf.ForOp) if ops(op, MmaOp)]
    (ahead,) = ops(loop, LoadOp)
    assert ahead.result in loop.body.block.last_op.operands
    first = [op for op in ops(split.consumer, LoadOp) if op is not ahead]
    assert [op.result for op in first] == [v for v in loop.iter_args if isinstance(v.owner, LoadOp)]
    assert not ops(split.producer, LoadOp)
    assert note(module) == (
        "loaded by consumers, one iteration ahead: the tile of scale does not run along its contiguous dimension"
    )


def filled(a: ts.Tensor["M", "K", ts.i8], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            left = ts.tile.load(a[m : m + 64, k : k + 64], fill=1)
            acc = ts.tile.mma(left.to(ts.bf16), b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc


def in_place(a: ts.Tensor["M", "K", ts.i8], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64].to(ts.bf16), b[k : k + 64, n : n + 64], acc)
        c[m : m + 64, n : n + 64] = acc
        a[m : m + 64, 0:64] = ts.tile.zeros((64, 64), ts.i8)


def wide(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    d: ts.Tensor["K", 256, ts.f32],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 128), (N, 256)):
        acc = ts.tile.zeros((128, 256), ts.f32)
        for k in ts.tile.range(0, K, 128):
            acc = ts.tile.mma(a[m : m + 128, k : k + 128], b[k : k + 128, n : n + 256], acc)
            acc = acc + d[k : k + 128, :]
        c[m : m + 128, n : n + 256] = acc


def looked_up(
    a: ts.Tensor["M", "K", ts.bf16],
    b: ts.Tensor["K", "N", ts.bf16],
    place: ts.Tensor[1, ts.i64],
    d: ts.Tensor["M", "K", ts.f32],
    c: ts.Tensor["M", "N", ts.f32],
) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        row = place[0]
        acc = ts.tile.zeros((64, 64), ts.f32)
        for k in ts.tile.range(0, K, 64):
            acc = ts.tile.mma(a[m : m + 64, k : k + 64], b[k : k + 64, n : n + 64], acc)
            acc = acc + d[row : row + 64, k : k + 64]
        c[m : m + 64, n : n + 64] = acc
        place[0] = row


def own_buffer(a: ts.Tensor["M", "K", ts.i8], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
    for m, n in ts.tile.grid((M, 64), (N, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        mine = ts.tile.alloc_shared((64, 64), ts.bf16)
        for k in ts.tile.range(0, K, 64):
            ts.tile.barrier()
            mine[...] = b[k : k + 64, n : n + 64]
            ts.tile.barrier()
            acc = ts.tile.mma(a[m : m + 64, k : k + 64].to(ts.bf16), mine, acc)
        c[m : m + 64, n : n + 64] = acc


def test_a_shared_buffer_of_the_kernels_own_keeps_one_role() -> None:
    module = specialized(own_buffer, sizes(128, 128, 128))
    assert not has_roles(module)
    assert "a shared buffer of the kernel's own" in note(module)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (
            looked_up,
            "the loop's bounds or the places it loads from are not known before the roles part",
        ),
        (filled, "the tile of a is loaded under a mask or with a fill"),
        (in_place, "a is stored to by the same launch"),
        (wide, "a stage of 131072 bytes for 128x256 does not fit in shared memory"),
    ],
)
def test_a_load_that_stays_says_why(kernel: Any, reason: str) -> None:
    module = specialized(kernel, sizes(256, 256, 512))
    assert has_roles(module)
    assert note(module) == f"loaded by consumers: {reason}"


def test_a_product_of_what_is_stored_with_an_odd_stride_stays_with_the_consumers() -> None:
    def odd(a: ts.Tensor["M", "K", ts.i8], b: ts.Tensor["K", "N", ts.bf16], c: ts.Tensor["M", "N", ts.f32]) -> None:
        for m, n in ts.tile.grid((M, 64), (N, 64)):
            acc = ts.tile.zeros((64, 64), ts.f32)
            for k in ts.tile.range(0, K, 64):
                acc = ts.tile.mma(a[m : m + 64, k : k + 64].to(ts.bf16), b[k : k + 64, n : n + 64], acc)
            c[m : m + 64, n : n + 64] = acc

    module = specialized(odd, {"M": 70, "N": 72, "K": 203})
    assert has_roles(module)
    assert "stride 0 of a is not known to be a multiple of 16 bytes" in note(module)
    r = np.random.default_rng(0)
    a = r.integers(-128, 128, (70, 203)).astype(np.int8)
    b = r.standard_normal((203, 72)).astype(CASES[0].arrays(r, 1, 1, 1)[1].dtype)
    c = np.full((70, 72), np.nan, np.float32)
    interpret(module, [a, b, c])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-4, atol=1e-1)
