"""Sums of a matrix unit's products are stored by the last iteration of their loop, and nothing else moves."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import scf
from xdsl.dialects.builtin import ModuleOp

import tessera as ts
from tessera.driver.pipeline import CANONICALIZE
from tessera.errors import VerifyError
from tessera.interp import interpret
from tessera.ir import decisions
from tessera.ir.target.product import ProductOp
from tessera.ir.target.types import BufferType
from tessera.ir.tile.memory import StoreOp
from tessera.ir.tile.mma import MmaOp
from tessera.lower.vector import lower_to_vector
from tessera.schedule.cpu.pack_operands import PackOperandsPass
from tessera.schedule.cpu.sink_stores import SinkStoresPass
from tessera.schedule.cpu.strip_products import StripProductsPass
from tessera.schedule.knobs import Knobs
from tessera.target.records import TargetRecord
from tessera.target.registry import target_named
from tests.unit.backends.test_cpu import run
from tests.unit.lower.support import aligned

SAPPHIRE_RAPIDS = target_named("sapphirerapids")
BF16 = ml_dtypes.bfloat16
RNG = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(BF16)


def scheduled(function: Any, target: TargetRecord = SAPPHIRE_RAPIDS, strip: int | None = None) -> ModuleOp:
    module = aligned(function)
    for step in CANONICALIZE:
        step.apply(module)
    passes = SinkStoresPass(target), PackOperandsPass(target), StripProductsPass(target, Knobs(strip=strip))
    for step in passes:
        step.apply(module)
    module.verify()
    return module


def stores_in_loops(module: ModuleOp) -> list[StoreOp]:
    stores = [op for op in module.walk() if isinstance(op, StoreOp)]
    return [op for op in stores if isinstance(op.parent_op(), scf.IfOp)]


def residual(
    a: ts.Tensor["m", "k", ts.bf16],
    b: ts.Tensor["k", "n", ts.bf16],
    bias: ts.Tensor["n", ts.f32],
    c: ts.Tensor["m", "n", ts.f32],
) -> None:
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for step in ts.tile.range(0, k, 64):
            acc = ts.tile.mma(a[i : i + 64, step : step + 64], b[step : step + 64, j : j + 64], acc)
        x = ts.tile.maximum(acc + bias[j : j + 64][None, :], 0.0)
        c[i : i + 64, j : j + 64] = c[i : i + 64, j : j + 64] + x * ts.tile.sigmoid(x)


def expected(a: np.ndarray, b: np.ndarray, bias: np.ndarray, c: np.ndarray) -> np.ndarray:
    x = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    return c + x / (1 + np.exp(-x))


def test_the_store_and_what_leads_to_it_move_into_the_last_iteration() -> None:
    module = scheduled(residual)
    (loop,) = [op for op in module.walk() if isinstance(op, scf.ForOp)]
    (store,) = stores_in_loops(module)
    branch = store.parent_op()
    assert isinstance(branch, scf.IfOp)
    assert branch.parent_op() is loop
    assert decisions.LAST_ITERATION.on(branch)
    assert loop.next_op is None or not loop.results[0].uses.get_length()


@pytest.mark.parametrize("depth", [0, 1, 64, 100, 130])
def test_it_means_the_same(depth: int) -> None:
    a, b, bias = numbers(70, depth), numbers(depth, 65), RNG.standard_normal(65).astype(np.float32)
    c = RNG.standard_normal((70, 65)).astype(np.float32)
    want = expected(a, b, bias, c)
    interpret(scheduled(residual), [a, b, bias, c])
    np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-4)


def late(a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["m", "n", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for step in ts.tile.range(32, k, 64):
            acc = ts.tile.mma(a[i : i + 64, step : step + 64], b[step : step + 64, j : j + 64], acc)
        c[i : i + 64, j : j + 64] = acc


@pytest.mark.parametrize("depth", [0, 1, 31, 32, 33, 96, 130])
def test_a_loop_may_start_behind_the_end(depth: int) -> None:
    a, b, c = numbers(70, depth), numbers(depth, 65), RNG.standard_normal((70, 65)).astype(np.float32)
    module = scheduled(late)
    assert stores_in_loops(module)
    interpret(module, [a, b, c])
    want = a[:, 32:].astype(np.float64) @ b[32:].astype(np.float64)
    np.testing.assert_allclose(c, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(70, 0, 65), (64, 64, 64), (200, 700, 333), (33, 65, 1), (96, 31, 128)])
def test_strips_are_finished_as_float64_says(sizes: tuple[int, int, int]) -> None:
    """On CPUs without a matrix unit, all rows at once."""
    m, k, n = sizes
    a, b, bias = numbers(m, k), numbers(k, n), RNG.standard_normal(n).astype(np.float32)
    c = RNG.standard_normal((m, n)).astype(np.float32)
    want = expected(a, b, bias, c)
    run(ts.kernel(residual), [a, b, bias, c])
    np.testing.assert_allclose(c, want, rtol=1e-3, atol=1e-3)


def half(a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["m", "n", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for step in ts.tile.range(0, k // 2, 64):
            acc = ts.tile.mma(a[i : i + 64, step : step + 64], b[step : step + 64, j : j + 64], acc)
        c[i : i + 64, j : j + 64] = acc


def other_axis(
    a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["l", "n", ts.bf16], c: ts.Tensor["m", "n", ts.f32]
) -> None:
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for step in ts.tile.range(0, k, 64):
            acc = ts.tile.mma(a[i : i + 64, step : step + 64], b[step : step + 64, j : j + 64], acc)
        c[i : i + 64, j : j + 64] = acc


def twice(
    a: ts.Tensor["m", "k", ts.bf16],
    b: ts.Tensor["k", "n", ts.bf16],
    c: ts.Tensor["m", "n", ts.f32],
    sums: ts.Tensor["m", ts.f32],
) -> None:
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for step in ts.tile.range(0, k, 64):
            acc = ts.tile.mma(a[i : i + 64, step : step + 64], b[step : step + 64, j : j + 64], acc)
        c[i : i + 64, j : j + 64] = acc
        sums[i : i + 64] = ts.tile.row_sum(acc)


def scaled(a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["m", "n", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for step in ts.tile.range(0, k, 64):
            acc = ts.tile.mma(a[i : i + 64, step : step + 64], b[step : step + 64, j : j + 64], acc * 0.5)
        c[i : i + 64, j : j + 64] = acc


@pytest.mark.parametrize("function", [half, other_axis, twice, scaled])
def test_other_loops_stay(function: Any) -> None:
    assert not stores_in_loops(scheduled(function))


def test_vector_units_are_left_alone() -> None:
    assert not stores_in_loops(scheduled(residual, target_named("x86-64-v4")))


def products(function: Any, strip: int | None = None) -> list[ProductOp]:
    lowered = lower_to_vector(scheduled(function, strip=strip), SAPPHIRE_RAPIDS)
    lowered.verify()
    return [op for op in lowered.walk() if isinstance(op, ProductOp)]


def rows_of(product: ProductOp) -> int:
    assert isinstance(product.acc.type, BufferType)
    return product.acc.type.shape[0]


def plain(a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["m", "n", ts.bf16]) -> None:
    for i, j in ts.tile.grid((m, 96), (n, 64)):
        acc = ts.tile.zeros((96, 64), ts.f32)
        for step in ts.tile.range(0, k, 64):
            acc = ts.tile.mma(a[i : i + 96, step : step + 64], b[step : step + 64, j : j + 64], acc)
        c[i : i + 96, j : j + 64] = acc


def turned(a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["n", "m", ts.bf16]) -> None:
    for i, j in ts.tile.grid((m, 96), (n, 64)):
        acc = ts.tile.zeros((96, 64), ts.f32)
        for step in ts.tile.range(0, k, 64):
            acc = ts.tile.mma(a[i : i + 96, step : step + 64], b[step : step + 64, j : j + 64], acc)
        c[j : j + 64, i : i + 96] = acc.T


def straight(a: ts.Tensor["m", 64, ts.bf16], b: ts.Tensor[64, "n", ts.bf16], c: ts.Tensor["m", "n", ts.bf16]) -> None:
    for i, j in ts.tile.grid((m, 96), (n, 64)):
        c[i : i + 96, j : j + 64] = ts.tile.mma(a[i : i + 96, :], b[:, j : j + 64])


def both(a: ts.Tensor["m", 64, ts.bf16], b: ts.Tensor[64, "n", ts.bf16], c: ts.Tensor["m", "n", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        one = ts.tile.mma(a[i : i + 64, 0:32], b[0:32, j : j + 64])
        c[i : i + 64, j : j + 64] = one * ts.tile.mma(a[i : i + 64, 32:64], b[32:64, j : j + 64])


def test_a_strip_at_a_time_in_the_last_iteration_all_rows_before() -> None:
    *strips, whole = products(plain)
    assert {rows_of(product) for product in strips} == {32}
    assert rows_of(whole) == 96
    last, before = (product.parent_block() for product in (strips[0], whole))
    assert last is not before


def test_without_a_loop_a_strip_at_a_time() -> None:
    assert {rows_of(product) for product in products(straight)} == {32}


def test_strips_are_as_long_as_asked_for() -> None:
    assert {rows_of(product) for product in products(shared, 64)} == {64}
    assert {rows_of(product) for product in products(straight, 0)} == {96}
    assert {rows_of(product) for product in products(straight, 64)} == {96}, "64 does not divide 96"


@pytest.mark.parametrize(
    ("function", "rows"), [("straight", 40), ("twice", 32), ("before_the_last", 32)], ids=lambda value: str(value)
)
def test_strips_that_a_product_cannot_have_are_refused(function: str, rows: int) -> None:
    """They do not divide its rows, or something else than one store in the last iteration takes it."""
    module = scheduled(globals()[function], strip=0)
    (product,) = [op for op in module.walk() if isinstance(op, MmaOp)]
    decisions.STRIP.write(product, rows)
    with pytest.raises(VerifyError, match=rf"strip is {rows} on a product of (64|96) rows") as caught:
        lower_to_vector(module, SAPPHIRE_RAPIDS)
    assert caught.value.location is not None


def test_two_products_of_one_store_are_computed_before_it() -> None:
    assert {rows_of(product) for product in products(both)} == {64}


def test_what_is_stored_in_another_order_is_computed_first() -> None:
    assert {rows_of(product) for product in products(turned)} == {96}


def shared(a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["m", "n", ts.f32]) -> None:
    for i, j in ts.tile.grid((m, 64), (n, 64)):
        acc = ts.tile.zeros((64, 64), ts.f32)
        for step in ts.tile.range(0, k, 64):
            acc = ts.tile.mma(a[i : i + 64, step : step + 64], b[step : step + 64, j : j + 64], acc)
        x = acc
        for _ in ts.tile.static_range(60):
            x = x * 0.5 + ts.tile.maximum(x, 0.0) * 0.25
        c[i : i + 64, j : j + 64] = x


def test_uses_that_meet_again_are_followed_once() -> None:
    """Each of the sixty steps uses its tile twice."""
    assert len(stores_in_loops(scheduled(shared))) == 1
    assert 32 in {rows_of(product) for product in products(shared)}


def by_hand(a: ts.Tensor["m", "k", ts.bf16], b: ts.Tensor["k", "n", ts.bf16], c: ts.Tensor["m", "n", ts.bf16]) -> None:
    for i, j in ts.tile.grid((m, 96), (n, 64)):
        acc = ts.tile.zeros((96, 64), ts.f32)
        for step in ts.tile.range(0, k, 32):
            acc = ts.tile.mma(a[i : i + 96, step : step + 32], b[step : step + 32, j : j + 64], acc)
            if step + 32 >= k:
                c[i : i + 96, j : j + 64] = acc


def before_the_last(
    a: ts.Tensor["m", "k", ts.bf16],
    b: ts.Tensor["k", "n", ts.bf16],
    c: ts.Tensor["m", "n", ts.f32],
    d: ts.Tensor["m", "n", ts.f32],
) -> None:
    for i, j in ts.tile.grid((m, 96), (n, 64)):
        acc = ts.tile.zeros((96, 64), ts.f32)
        for step in ts.tile.range(0, k, 32):
            acc = ts.tile.mma(a[i : i + 96, step : step + 32], b[step : step + 32, j : j + 64], acc)
            if step + 32 >= k:
                d[i : i + 96, j : j + 64] = ts.tile.zeros((96, 64), ts.f32)
            else:
                c[i : i + 96, j : j + 64] = acc


def test_a_store_by_hand_in_the_last_iteration_is_one_too() -> None:
    *strips, whole = products(by_hand)
    assert {rows_of(product) for product in strips} == {32}
    assert rows_of(whole) == 96


def test_a_store_in_all_other_iterations_is_none() -> None:
    assert {rows_of(product) for product in products(before_the_last)} == {96}
    a, b = numbers(100, 64), numbers(64, 70)
    c, d = np.full((100, 70), 77, np.float32), np.full((100, 70), 77, np.float32)
    run(ts.kernel(before_the_last), [a, b, c, d])
    np.testing.assert_allclose(c, a[:, :32].astype(np.float64) @ b[:32].astype(np.float64), rtol=1e-3, atol=1e-3)
    assert not d.any()


@pytest.mark.parametrize("function", [plain, turned, straight, twice, half, by_hand])
@pytest.mark.parametrize("sizes", [(100, 64, 70), (96, 64, 64), (300, 64, 10)])
def test_all_of_them_run(function: Any, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = numbers(m, k), numbers(k, n)
    want = a.astype(np.float64) @ b.astype(np.float64)
    shape = (n, m) if function is turned else (m, n)
    dtype = np.float32 if function in (twice, half) else BF16
    c = np.full(shape, 77, dtype)
    sums = [np.zeros(m, np.float32)] * (function is twice)
    run(ts.kernel(function), [a, b, c, *sums])
    got = (c.T if function is turned else c).astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2 * np.abs(want).max())
