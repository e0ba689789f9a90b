"""Integers that are compared right after the arithmetic that made them: what wraps must have wrapped by then.

Machines compute narrow integers in wider registers, and assemblers make one instruction of a maximum and a comparison
(VIMNMX with predicates): CUDA 13.0 gets that wrong for 16 bits, and takes `abs.s16` of the least number for positive.
"""

from collections.abc import Callable

import numpy as np

import tessera as ts
from tests.conformance.data import integers
from tests.conformance.harness import BACKENDS, Case, Output, check, conformance, dtype

INTS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32")
ROWS, COLUMNS = 17, 512


@ts.function
def _sides(m, a, b):
    equal = ts.tile.where(m == a, 1, 0) + ts.tile.where(m == b, 2, 0) + ts.tile.where(m == 0, 4, 0)
    order = ts.tile.where(m < a, 8, 0) + ts.tile.where(m > b, 16, 0) + ts.tile.where(m >= 1, 32, 0)
    return equal + order + ts.tile.where(a != m, 64, 0)


@ts.function
def _chosen(m, a, b):
    return ts.tile.where(m == a, b, ts.tile.where(m == 0, a, m))


def extremes(type_: ts.DType) -> Callable[..., None]:
    def kernel(
        x: ts.Tensor["n", type_],
        y: ts.Tensor["n", type_],
        sides: ts.Tensor[17, "n", ts.i32],
        chosen: ts.Tensor[17, "n", type_],
    ):
        for i in ts.tile.grid((n, 128)):
            a, b = x[i : i + 128], y[i : i + 128]
            zero = ts.tile.zeros_like(a)
            pairs = (
                (ts.tile.maximum(a, b), a, b),
                (ts.tile.minimum(a, b), a, b),
                (ts.tile.maximum(a, zero), a, zero),
                (ts.tile.minimum(a, zero), a, zero),
                (ts.tile.maximum(zero, b), zero, b),
                (ts.tile.maximum(a, -a), a, b),
                (ts.tile.minimum(a, ~b), a, b),
                (ts.tile.maximum(a - b, a), a, b),
                (ts.tile.where(a > b, a, b), a, b),
                (ts.tile.where(a < 7, a, 7), a, b),
                (ts.tile.abs(a), a, b),
                (-a, a, b),
                (a + b, a, b),
                (a - b, a, b),
                (a * b, a, b),
                (~a, a, b),
                (a << 1, a, b),
            )
            for k in ts.tile.static_range(17):
                m, p, q = pairs[k]
                sides[k, i : i + 128] = _sides(m, p, q)
                chosen[k, i : i + 128] = _chosen(m, p, q)

    return kernel


def _expected(x: np.ndarray, y: np.ndarray, *_: object) -> tuple[np.ndarray, np.ndarray]:
    """Compute in 64 bits; only negations, complements and differences wrap to the dtype."""
    a, b, zero = x.astype(np.int64), y.astype(np.int64), np.zeros(x.size, np.int64)
    with np.errstate(over="ignore"):
        negated, inverted, difference = (value.astype(np.int64) for value in (-x, ~y, x - y))
        wrapped = [np.abs(x), -x, x + y, x - y, x * y, ~x, (x << np.ones_like(x)).astype(x.dtype)]
    rows = [
        (np.maximum(a, b), a, b),
        (np.minimum(a, b), a, b),
        (np.maximum(a, 0), a, zero),
        (np.minimum(a, 0), a, zero),
        (np.maximum(0, b), zero, b),
        (np.maximum(a, negated), a, b),
        (np.minimum(a, inverted), a, b),
        (np.maximum(difference, a), a, b),
        (np.where(a > b, a, b), a, b),
        (np.where(a < 7, a, 7), a, b),
        *((value.astype(np.int64), a, b) for value in wrapped),
    ]
    sides = [
        (m == p) + 2 * (m == q) + 4 * (m == 0) + 8 * (m < p) + 16 * (m > q) + 32 * (m >= 1) + 64 * (p != m)
        for m, p, q in rows
    ]
    chosen = [np.where(m == p, q, np.where(m == 0, p, m)) for m, p, q in rows]
    return np.stack(sides).astype(np.int32), np.stack(chosen).astype(x.dtype)


def _case(name: str) -> Case:
    type_ = dtype(name)

    def arguments(rng: np.random.Generator) -> list[object]:
        x, y = (integers(rng, (COLUMNS,), type_) for _ in range(2))
        ties = rng.random(COLUMNS)
        y, x = np.where(ties < 0.2, x, y), np.where(ties > 0.9, 0, x)
        outputs = [Output((ROWS, COLUMNS), ts.i32), Output((ROWS, COLUMNS), type_)]
        return [x.astype(type_.numpy()), y.astype(type_.numpy()), *outputs]

    return Case(name, extremes(type_), arguments, _expected)


@conformance([_case(name) for name in INTS])
def test_comparisons_with_the_operands(case, backend):
    check(case, backend)


def negations(type_: ts.DType) -> Callable[..., None]:
    """Return a kernel without a maximum or minimum, for whose sake negations are written otherwise on some GPUs."""

    def kernel(x: ts.Tensor["n", type_], y: ts.Tensor["n", type_], signs: ts.Tensor[5, "n", ts.i64]):
        for i in ts.tile.grid((n, 128)):
            a, b = x[i : i + 128], y[i : i + 128]
            for k in ts.tile.static_range(5):
                m = (-a, -(a + b), b - a, -(~b), -(a * b))[k]
                shifted, wide = (m >> 3).to(ts.i64), m.to(ts.i64)
                order = ts.tile.where(m < 0, 1, 0) + ts.tile.where(m > 5, 2, 0) + ts.tile.where(m == a, 4, 0)
                signs[k, i : i + 128] = ts.tile.sign(m).to(ts.i64) + 8 * (shifted ^ wide) + order.to(ts.i64)

    return kernel


def _negated(x: np.ndarray, y: np.ndarray, *_: object) -> np.ndarray:
    """Compute in 64 bits what has wrapped to the dtype."""
    with np.errstate(over="ignore"):
        found = [-x, -(x + y), y - x, -(~y), -(x * y)]
        rows = []
        for m in found:
            shifted, wide = (m >> m.dtype.type(3)).astype(np.int64), m.astype(np.int64)
            order = (wide < 0) + 2 * (wide > 5) + 4 * (m == x)
            rows.append(np.sign(wide) + 8 * (shifted ^ wide) + order)
    return np.stack(rows)


def _negating(name: str) -> Case:
    type_ = dtype(name)

    def arguments(rng: np.random.Generator) -> list[object]:
        x, y = (integers(rng, (COLUMNS,), type_) for _ in range(2))
        return [x, y, Output((5, COLUMNS), ts.i64)]

    return Case(name, negations(type_), arguments, _negated, backends=(*BACKENDS, "ptx-sm_80", "ptx-sm_90a"))


@conformance([_negating(name) for name in INTS])
def test_negations_have_wrapped(case, backend):
    check(case, backend)


LEAST = {"i8": -100, "i16": -30000, "i32": -65535, "i64": -65535}


def magnitudes(type_: ts.DType, least: int) -> Callable[..., None]:
    def kernel(x: ts.Tensor["n", type_], kept: ts.Tensor[6, "n", type_], signs: ts.Tensor[6, "n", ts.i32]):
        for i in ts.tile.grid((n, 128)):
            a = x[i : i + 128]
            size = ts.tile.abs(a)
            for k in ts.tile.static_range(6):
                m = (size, -size, ts.tile.maximum(-size, least), ts.tile.minimum(size, 0), ts.tile.abs(~a), -size // 2)[
                    k
                ]
                kept[k, i : i + 128] = m
                low = ts.tile.where(m < 0, 1, 0) + ts.tile.where(m >= least, 2, 0) + ts.tile.where(m == -1, 4, 0)
                high = ts.tile.where(m > 0, 8, 0) + ts.tile.where(-size > least, 16, 0) + ts.tile.where(m != a, 32, 0)
                signs[k, i : i + 128] = low + high

    return kernel


def _sized(x: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):
        size = np.where(x < 0, -x, x)
        least, one = x.dtype.type(least), x.dtype.type(2)
        inverse = np.where(~x < 0, -(~x), ~x)
        rows = [size, -size, np.maximum(-size, least), np.minimum(size, 0), inverse, -size // one]
        signs = [
            (m < 0) + 2 * (m >= least) + 4 * (m == -1) + 8 * (m > 0) + 16 * (-size > least) + 32 * (m != x)
            for m in rows
        ]
    return np.stack(rows).astype(x.dtype), np.stack(signs).astype(np.int32)


def _measuring(name: str) -> Case:
    type_ = dtype(name)

    def arguments(rng: np.random.Generator) -> list[object]:
        few = rng.integers(-9, 10, COLUMNS)
        x = np.where(rng.random(COLUMNS) < 0.4, few, integers(rng, (COLUMNS,), type_))
        x[:3] = np.iinfo(type_.numpy()).min
        return [x.astype(type_.numpy()), Output((6, COLUMNS), type_), Output((6, COLUMNS), ts.i32)]

    def expected(x: np.ndarray, *_: object) -> tuple[np.ndarray, np.ndarray]:
        return _sized(x, LEAST[name])

    backends = (*BACKENDS, "ptx-sm_80", "ptx-sm_90a")
    return Case(name, magnitudes(type_, LEAST[name]), arguments, expected, backends=backends)


@conformance([_measuring(name) for name in LEAST])
def test_magnitudes_have_wrapped(case, backend):
    check(case, backend)


def _limited(x: ts.Tensor["n", ts.u32], y: ts.Tensor["n", ts.i32], z: ts.Tensor["n", ts.u32]):
    for i in ts.tile.grid((n, 128)):
        low = ts.tile.minimum(ts.tile.cast(ts.tile.maximum(x[i : i + 128], 1000), ts.i32), 65535)
        y[i : i + 128] = low & 65535
        z[i : i + 128] = ts.tile.cast(ts.tile.cast(low, ts.u16), ts.u32)


def _between(x: np.ndarray, *_: object) -> tuple[np.ndarray, np.ndarray]:
    low = np.minimum(np.maximum(x, np.uint32(1000)).view(np.int32), np.int32(65535))
    return low & 65535, (low & 65535).astype(np.uint32)


def _large(rng: np.random.Generator) -> list[object]:
    x = integers(rng, (COLUMNS,), dtype("u32")).astype(np.uint32)
    x[:4] = (0, 2**31, 2**32 - 1, 2**32 - 70000)
    return [x, Output((COLUMNS,), ts.i32), Output((COLUMNS,), ts.u32)]


@conformance([Case("limited", _limited, _large, _between, backends=(*BACKENDS, "ptx-sm_80", "ptx-sm_90a"))])
def test_unsigned_maxima_may_be_negative_below_signed_minima(case, backend):
    check(case, backend)


def _read_twice(
    x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32], size: ts.Tensor["n", ts.f32], below: ts.Tensor["n", ts.i32]
):
    for i in ts.tile.grid((n, 128)):
        buffer = ts.tile.alloc_shared((128,), ts.f32)
        buffer[...] = x[i : i + 128]
        ts.tile.barrier()
        first = buffer[::-1]
        ts.tile.barrier()
        buffer[...] = y[i : i + 128]
        ts.tile.barrier()
        product = first * buffer[::-1]
        size[i : i + 128] = ts.tile.abs(product)
        below[i : i + 128] = ts.tile.where(product < 0, 1, 0)


def _products(x: np.ndarray, y: np.ndarray, *_: object) -> tuple[np.ndarray, np.ndarray]:
    product = (x * y).reshape(-1, 128)[:, ::-1].reshape(-1)
    return np.abs(product), (product < 0).astype(np.int32)


def _pairs(rng: np.random.Generator) -> list[object]:
    x, y = (rng.standard_normal(COLUMNS).astype(np.float32) for _ in range(2))
    return [x, y, Output((COLUMNS,), ts.f32), Output((COLUMNS,), ts.i32)]


@conformance([Case("read twice", _read_twice, _pairs, _products)])
def test_products_of_what_one_address_held_are_no_squares(case, backend):
    check(case, backend)


def _shifted(x: ts.Tensor["n", ts.u32], y: ts.Tensor["n", ts.i32]):
    for i in ts.tile.grid((n, 128)):
        below = ts.tile.cast(~(x[i : i + 128] >> 1), ts.i32) >> 1
        y[i : i + 128] = ts.tile.where(~below >= below, 1, 0) + ts.tile.where(below < 0, 2, 0)


def _always(x: np.ndarray, *_: object) -> np.ndarray:
    return np.full(x.shape, 3, np.int32)


@conformance([Case("shifted", _shifted, lambda rng: _large(rng)[:2], _always, backends=(*BACKENDS, "ptx-sm_90a"))])
def test_what_is_shifted_stays_negative(case, backend):
    check(case, backend)


def _upper_less(x: ts.Tensor["n", ts.u32], y: ts.Tensor["n", ts.i64], z: ts.Tensor["n", ts.i64]):
    for i in ts.tile.grid((n, 128)):
        upper = ts.tile.mulhi(x[i : i + 128], 7).to(ts.i64)
        # What was in shared memory is known only when it runs.
        buffer = ts.tile.alloc_shared((128,), ts.i64)
        buffer[...] = y[i : i + 128]
        ts.tile.barrier()
        z[i : i + 128] = upper - buffer[...]


def _upper_halves(x: np.ndarray, y: np.ndarray, _z: object) -> np.ndarray:
    return (x.astype(np.int64) * 7 >> 32) - y


def _wide(rng: np.random.Generator) -> list[object]:
    y = integers(rng, (COLUMNS,), dtype("i64")).astype(np.int64)
    y[: COLUMNS // 2] &= ~np.int64(2**32 - 1)  # of a lower half of 0
    return [integers(rng, (COLUMNS,), dtype("u32")).astype(np.uint32), y, Output((COLUMNS,), ts.i64)]


@conformance([Case("upper halves", _upper_less, _wide, _upper_halves, backends=(*BACKENDS, "ptx-sm_80", "ptx-sm_90a"))])
def test_differences_from_upper_halves_borrow(case, backend):
    check(case, backend)
