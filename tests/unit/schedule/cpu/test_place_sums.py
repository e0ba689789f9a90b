"""Sums that lie where they are stored: which do, and that nothing beside them is written, whatever the sizes."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import tessera as ts
from tessera.canonicalize.stages import CANONICALIZE
from tessera.driver.pipeline import schedule_passes
from tessera.ir import decisions
from tessera.ir.tile.memory import StoreOp
from tessera.schedule.knobs import Knobs
from tessera.target.registry import target_named
from tests.unit.backends.test_cpu import _runnable, run
from tests.unit.lower.support import aligned

RNG = np.random.default_rng(31)
F32 = ts.f32


def product_of(
    name: str,
    block: tuple[int, int, int] = (24, 80, 32),
    columns: str = "n",
    terms: str = "k",
    given: ts.DType = ts.f32,
    summed: ts.DType = ts.f32,
    stored: ts.DType = ts.f32,
) -> Callable[..., None]:
    """Return a product by steps of its terms.

    Args:
        name: of the function.
        block: rows and columns of a tile, and terms of a step.
        columns: name of the right operand's columns, which are "n" in the result.
        terms: name of its terms, which are "k" in the left operand.
        given: dtype of the operands.
        summed: dtype of the sums.
        stored: dtype of the result.
    """
    rows, width, step = block

    def product(a: ts.Tensor["m", "k", given], b: ts.Tensor[terms, columns, given], c: ts.Tensor["m", "n", stored]):
        for i, j in ts.tile.grid((m, rows), (n, width)):
            total = ts.tile.zeros((rows, width), summed)
            for q in ts.tile.range(0, k, step):
                total = ts.tile.mma(a[i : i + rows, q : q + step], b[q : q + step, j : j + width], total)
            c[i : i + rows, j : j + width] = total

    product.__name__ = name
    return product


plain = product_of("plain")
doubles = product_of("doubles", (20, 40, 24), given=ts.f64, summed=ts.f64, stored=ts.f64)
integers = product_of("integers", (24, 48, 32), given=ts.i8, summed=ts.i32, stored=ts.i32)
narrowed = product_of("narrowed", (64, 96, 32), given=ts.bf16, stored=ts.bf16)
"""Sums of another dtype than the result; matrix units compute and store them by strips of rows."""
other_columns = product_of("other_columns", columns="l")
"""The right operand may have fewer columns than the result, or more."""
other_depth = product_of("other_depth", terms="l")
"""The right operand may have fewer terms than the left one, also none."""


def turned(a: ts.Tensor["k", "m", F32], b: ts.Tensor["n", "k", F32], c: ts.Tensor["m", "n", F32]) -> None:
    for i, j in ts.tile.grid((m, 32), (n, 48)):
        total = ts.tile.zeros((32, 48), ts.f32)
        for q in ts.tile.range(0, k, 16):
            total = ts.tile.mma(a[q : q + 16, i : i + 32].T, b[j : j + 48, q : q + 16].T, total)
        c[i : i + 32, j : j + 48] = total


def scaled(a: ts.Tensor["m", "k", F32], b: ts.Tensor["k", "n", F32], c: ts.Tensor["m", "n", F32]) -> None:
    for i, j in ts.tile.grid((m, 24), (n, 80)):
        total = ts.tile.zeros((24, 80), ts.f32)
        for q in ts.tile.range(0, k, 32):
            total = ts.tile.mma(a[i : i + 24, q : q + 32], b[q : q + 32, j : j + 80], total)
        c[i : i + 24, j : j + 80] = total * 2.0


def added(a: ts.Tensor["m", "k", F32], b: ts.Tensor["k", "n", F32], c: ts.Tensor["m", "n", F32]) -> None:
    """The result is read before it is written."""
    for i, j in ts.tile.grid((m, 24), (n, 80)):
        total = c[i : i + 24, j : j + 80]
        for q in ts.tile.range(0, k, 32):
            total = ts.tile.mma(a[i : i + 24, q : q + 32], b[q : q + 32, j : j + 80], total)
        c[i : i + 24, j : j + 80] = total


def square(a: ts.Tensor["m", "m", F32], c: ts.Tensor["m", "m", F32]) -> None:
    for i, j in ts.tile.grid((m, 24), (m, 80)):
        total = ts.tile.zeros((24, 80), ts.f32)
        for q in ts.tile.range(0, m, 32):
            total = ts.tile.mma(a[i : i + 24, q : q + 32], a[q : q + 32, j : j + 80], total)
        c[i : i + 24, j : j + 80] = total


def repeated(a: ts.Tensor["m", "k", F32], b: ts.Tensor["k", "n", F32], c: ts.Tensor["m", "n", F32]) -> None:
    """Several programs store the same elements."""
    for i, j, _ in ts.tile.grid((m, 24), (n, 80), (k, 1)):
        total = ts.tile.zeros((24, 80), ts.f32)
        for q in ts.tile.range(0, k, 32):
            total = ts.tile.mma(a[i : i + 24, q : q + 32], b[q : q + 32, j : j + 80], total)
        c[i : i + 24, j : j + 80] = total


def overlapping(a: ts.Tensor["m", "k", F32], b: ts.Tensor["k", "n", F32], c: ts.Tensor["m", "n", F32]) -> None:
    """Neighbours store some of the same rows."""
    for i, j in ts.tile.grid((m, 16), (n, 80)):
        total = ts.tile.zeros((24, 80), ts.f32)
        for q in ts.tile.range(0, k, 32):
            total = ts.tile.mma(a[i : i + 24, q : q + 32], b[q : q + 32, j : j + 80], total)
        c[i : i + 24, j : j + 80] = total


def used_again(
    a: ts.Tensor["m", "k", F32], b: ts.Tensor["k", "n", F32], c: ts.Tensor["m", "n", F32], d: ts.Tensor["m", "n", F32]
) -> None:
    for i, j in ts.tile.grid((m, 24), (n, 80)):
        total = ts.tile.zeros((24, 80), ts.f32)
        for q in ts.tile.range(0, k, 32):
            total = ts.tile.mma(a[i : i + 24, q : q + 32], b[q : q + 32, j : j + 80], total)
        c[i : i + 24, j : j + 80] = total
        d[i : i + 24, j : j + 80] = total + 1.0


PLACED = [(plain, True), (turned, True), (doubles, True), (integers, True), (square, True)]
OTHERS = [(one, False) for one in (scaled, added, other_columns, used_again, repeated, overlapping)]


@pytest.mark.parametrize(("function", "placed"), [*PLACED, *OTHERS], ids=lambda one: getattr(one, "__name__", str(one)))
def test_sums_that_are_all_that_is_stored_have_their_place(function: Callable[..., None], placed: bool) -> None:
    module, target = aligned(function), target_named("x86-64-v3")
    for step in (*CANONICALIZE, *schedule_passes(target, Knobs())):
        step.apply(module)
    stores = [op for op in module.walk() if isinstance(op, StoreOp)]
    assert [decisions.SUMS_IN_PLACE.on(op) for op in stores] == [placed] * len(stores)


SIZES = [(1, 1, 1), (25, 81, 33), (24, 80, 64), (7, 15, 40), (48, 161, 5), (49, 16, 65), (30, 63, 0), (0, 5, 4)]


@pytest.mark.parametrize("target", _runnable())
@pytest.mark.parametrize("function", [plain, doubles, integers, narrowed], ids=lambda one: one.__name__)
def test_nothing_beside_the_sums_is_written(function: Callable[..., None], target: str) -> None:
    kernel = ts.kernel(function)
    dtype, total = {
        "plain": (np.float32, np.float32),
        "doubles": (np.float64, np.float64),
        "integers": (np.int8, np.int32),
        "narrowed": (ml_dtypes.bfloat16, ml_dtypes.bfloat16),
    }[function.__name__]
    for m, n, k in SIZES:
        a, b = (RNG.integers(-3, 4, shape).astype(dtype) for shape in ((m, k), (k, n)))
        room = np.full((m + 2, n + 37), 77, total)
        run(kernel, [a, b, room[1 : m + 1, 5 : n + 5]], target)
        expected = np.full_like(room, 77)
        expected[1 : m + 1, 5 : n + 5] = (a.astype(np.int64) @ b.astype(np.int64)).astype(total)
        assert np.array_equal(room, expected), (m, n, k)


@pytest.mark.parametrize("function", [turned, other_columns, other_depth, added, square, used_again])
def test_products_of_other_operands(function: Callable[..., None]) -> None:
    kernel = ts.kernel(function)
    for m, n, k in SIZES[1:6]:
        left, right = (RNG.integers(-9, 9, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        c = np.full((m, n), 3, np.float32)
        expected = left @ right
        if function is turned:
            kernel(np.ascontiguousarray(left.T), np.ascontiguousarray(right.T), c)
        elif function is other_columns:
            columns = max(n - 9, 1)
            kernel(left, np.ascontiguousarray(right[:, :columns]), c)
            expected[:, columns:] = 0
        elif function is other_depth:
            terms = k // 2
            kernel(left, np.ascontiguousarray(right[:terms]), c)
            expected = left[:, :terms] @ right[:terms]
        elif function is added:
            kernel(left, right, c)
            expected += 3
        elif function is square:
            left, c = RNG.integers(-9, 9, (m, m)).astype(np.float32), np.full((m, m), 3, np.float32)
            kernel(left, c)
            expected = left @ left
        else:
            d = np.full((m, n), 3, np.float32)
            kernel(left, right, c, d)
            assert np.array_equal(d, expected + 1)
        assert np.array_equal(c, expected), (m, n, k)


def test_a_result_that_is_an_operand_too() -> None:
    """The sums of a program then may not begin where others are still to be read."""
    kernel = ts.kernel(square)
    a = RNG.integers(-3, 3, (20, 20)).astype(np.float32)  # one program reads all of it
    expected = a @ a
    kernel(a, a)
    assert np.array_equal(a, expected)
