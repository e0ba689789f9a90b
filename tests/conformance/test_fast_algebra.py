"""What `fast` rewrites: scaled exponentials and quotients by shared divisors, against float64, extremes included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics import dtypes
from tessera.numerics.tolerances import Tolerance, of_function, smallest_normal, unit_roundoff
from tests.conformance.harness import BACKENDS, Case, Close, Output, check, conformance

ON = (*BACKENDS, "ptx-sm_80", "ptx-sm_90a")
ROWS, COLUMNS = 16, 32
SCALE = np.float32(0.08838834764831845)
ULP = 2 * unit_roundoff(dtypes.f32)
WEIGHTS = Tolerance(relative=3 * ULP, scaled=1.5 * ULP, absolute=smallest_normal(dtypes.f32))
"""Of exp2, and of its argument: 1.5 ULP of what is subtracted from what."""


def weigh(
    X: ts.Tensor[ROWS, COLUMNS, ts.f32],
    SEEN: ts.Tensor[ROWS, COLUMNS, ts.i32],
    M: ts.Tensor[ROWS, ts.f32],
    TOP: ts.Tensor[ROWS, ts.f32],
    P: ts.Tensor[ROWS, COLUMNS, ts.f32],
    Q: ts.Tensor[ROWS, COLUMNS, ts.f32],
) -> None:
    for _z in ts.tile.grid((1, 1)):
        scores = ts.tile.where(SEEN[:, :] > 0, X[:, :] * 0.08838834764831845, -float("inf"))
        m = M[:]
        TOP[:] = ts.tile.row_max(scores)
        P[:, :] = ts.tile.exp(scores - m[:, None])
        Q[:, :] = ts.tile.exp(m[:, None] + scores)


def weights(x: Any, seen: Any, m: Any, *_outputs: Any) -> Any:
    scores = np.where(seen > 0, x.astype(np.float64) * float(SCALE), -np.inf)
    top = np.where(seen > 0, x * SCALE, -np.inf).max(axis=1)  # rounded once: to the bit
    m = m.astype(np.float64)[:, None]
    return top.astype(np.float32), _exponential(scores, -m), _exponential(scores, m)


def _exponential(a: Any, b: Any) -> Close:
    """Return exp(a + b) with what its error is relative to: the numbers added."""
    result = np.exp(a + b)
    beyond = result > np.finfo(np.float32).max
    size = np.where(np.isfinite(a + b) & (result > 0), (np.abs(a) + np.abs(b)) * result, 0.0)
    return Close(np.where(beyond, np.inf, result), np.where(beyond, 0.0, size))


def scores_of(size: float) -> Any:
    def arguments(rng: np.random.Generator) -> list[Any]:
        x = (rng.standard_normal((ROWS, COLUMNS)) * size / SCALE).astype(np.float32)
        seen = rng.integers(0, 3, (ROWS, COLUMNS)).astype(np.int32)
        seen[3] = 0  # a row that is masked wholly
        m = np.abs(x * SCALE).max(axis=1) + rng.uniform(0, 20, ROWS).astype(np.float32)
        return [x, seen, m.astype(np.float32), *_outputs()]

    return arguments


def extremes(rng: np.random.Generator) -> list[Any]:
    """Return infinities, NaN and finite numbers up to the largest, in all combinations that decide the result."""
    numbers = np.array([0.0, -0.0, 1e-45, -1e-38, 1e-20, 1.0, -50.0, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
    x = np.ones((ROWS, COLUMNS), np.float32)
    x[:, : numbers.size] = numbers
    m = np.zeros(ROWS, np.float32)
    m[:10] = [0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, 60.0, -60.0, 1e30]
    return [x, np.ones((ROWS, COLUMNS), np.int32), m, *_outputs()]


def _outputs() -> list[Output]:
    return [Output((ROWS,), dtypes.f32), *[Output((ROWS, COLUMNS), dtypes.f32)] * 2]


CASES = [
    Case(f"weights-{name}", weigh, arguments, weights, (Tolerance(), WEIGHTS, WEIGHTS), backends=ON)
    for name, arguments in (
        ("of-one", scores_of(1.0)),
        ("of-hundreds", scores_of(200.0)),
        ("tiny", scores_of(1e-30)),
        ("extremes", extremes),
    )
]


def hide(
    X: ts.Tensor[ROWS, COLUMNS, ts.f32],
    SEEN: ts.Tensor[ROWS, COLUMNS, ts.i32],
    P: ts.Tensor[ROWS, COLUMNS, ts.f32],
    Q: ts.Tensor[ROWS, COLUMNS, ts.f32],
    R: ts.Tensor[ROWS, COLUMNS, ts.f32],
) -> None:
    for _z in ts.tile.grid((1, 1)):
        seen = SEEN[:, :] > 0
        after = ts.tile.where(seen, X[:, :] * 0.3, -1e9)
        before = ts.tile.where(seen, X[:, :], -1e30) * 0.3
        little = ts.tile.where(seen, X[:, :] * 0.3, -8.0)
        P[:, :] = ts.tile.exp(after - ts.tile.row_max(after)[:, None])
        Q[:, :] = ts.tile.exp(before - ts.tile.row_max(before)[:, None])
        R[:, :] = ts.tile.exp(little - ts.tile.row_max(little)[:, None])


def hidden(x: Any, seen: Any, *_outputs: Any) -> Any:
    """Return weights; where a row is hidden wholly, all are 1."""
    scaled = x.astype(np.float64) * float(np.float32(0.3))
    found = []
    for fill in (-1e9, -3e29, -8.0):
        scores = np.where(seen > 0, scaled, fill)
        top = scores.max(axis=1, keepdims=True)
        weights = np.exp(scores - top)
        size = np.where(np.abs(scores) + np.abs(top) < 1e6, np.abs(scores) + np.abs(top), 0.0)
        found.append(Close(weights, size * weights))
    return tuple(found)


def hidden_scores(rng: np.random.Generator) -> list[Any]:
    x = (rng.standard_normal((ROWS, COLUMNS)) * 30).astype(np.float32)
    seen = rng.integers(0, 3, (ROWS, COLUMNS)).astype(np.int32)
    seen[5:8] = 0
    return [x, seen, *[Output((ROWS, COLUMNS), dtypes.f32)] * 3]


CASES += [Case("hidden", hide, hidden_scores, hidden, (WEIGHTS,) * 3, backends=ON)]


def divide(
    X: ts.Tensor[ROWS, COLUMNS, ts.f32],
    D: ts.Tensor[ROWS, ts.f32],
    by: ts.f32,
    Y: ts.Tensor[ROWS, COLUMNS, ts.f32],
    Z: ts.Tensor[ROWS, COLUMNS, ts.f32],
) -> None:
    for _z in ts.tile.grid((1, 1)):
        x = X[:, :]
        Y[:, :] = x / D[:][:, None]
        Z[:, :] = x / by


def quotients(x: Any, d: Any, by: Any, *_outputs: Any) -> Any:
    return x.astype(np.float64) / d.astype(np.float64)[:, None], x.astype(np.float64) / float(by)


def dividends(rng: np.random.Generator) -> list[Any]:
    x = rng.standard_normal((ROWS, COLUMNS)) * 10.0 ** rng.uniform(-15, 15, (ROWS, COLUMNS))
    d = rng.standard_normal(ROWS) * 10.0 ** rng.uniform(-15, 15, ROWS)
    return [x.astype(np.float32), d.astype(np.float32), 3.7e5, *_outputs()[1:]]


def by_extremes(rng: np.random.Generator) -> list[Any]:
    numbers = np.array([0.0, -0.0, 1.0, -(2.0**60), np.inf, -np.inf, np.nan, 2.0**-126, 2.0**126], np.float32)
    x, d = np.ones((ROWS, COLUMNS), np.float32), np.ones(ROWS, np.float32)
    x[:, : numbers.size], d[: numbers.size] = numbers, numbers
    return [x, d, float("inf"), *_outputs()[1:]]


def by_the_largest(rng: np.random.Generator) -> list[Any]:
    """Return divisors whose reciprocals are subnormal."""
    x = rng.uniform(0.5, 2.0, (ROWS, COLUMNS)) * 2.0**100
    d = rng.uniform(1.0, 2.0, ROWS) * 2.0 ** rng.integers(126, 128, ROWS)
    return [x.astype(np.float32), d.astype(np.float32), 3e38, *_outputs()[1:]]


QUOTIENT = of_function("div", dtypes.f32)
BY_LARGEST = Tolerance(relative=5 * ULP, absolute=smallest_normal(dtypes.f32))
CASES += [
    Case("quotients", divide, dividends, quotients, QUOTIENT, backends=ON),
    Case("quotients-extremes", divide, by_extremes, quotients, QUOTIENT, backends=ON),
    Case("quotients-by-the-largest", divide, by_the_largest, quotients, BY_LARGEST, backends=ON),
]


@conformance(CASES)
def test_fast_algebra(case: Case, backend: str) -> None:
    check(case, backend)


@pytest.mark.parametrize("profile", ["deterministic", "strict"])
def test_other_profiles_compute_what_is_written(profile: Any) -> None:
    with ts.numerics.profile(profile):
        text = ts.compile(ts.kernel(weigh), target="sm_80", dump=["tirh"]).dumps["tirh"]
    assert text.count('"exp"') == 2
    assert "exp2" not in text


def weigh_products(
    X: ts.Tensor[ROWS, 16, ts.f16],
    Y: ts.Tensor[16, COLUMNS, ts.f16],
    SEEN: ts.Tensor[ROWS, COLUMNS, ts.i32],
    M: ts.Tensor[ROWS, ts.f32],
    P: ts.Tensor[ROWS, COLUMNS, ts.f32],
    Q: ts.Tensor[ROWS, COLUMNS, ts.f32],
) -> None:
    for _z in ts.tile.grid((1, 1)):
        scores = ts.tile.where(SEEN[:, :] > 0, ts.tile.dot(X[:, :], Y[:, :]) * 0.08838834764831845, -float("inf"))
        m = M[:]
        P[:, :] = ts.tile.exp(scores - m[:, None])
        Q[:, :] = ts.tile.exp(m[:, None] + scores)


def test_fast_leaves_one_multiplication_and_an_exponential_of_base_2_per_element() -> None:
    text = ts.compile(ts.kernel(weigh_products), target="sm_80", dump=["tirh"]).dumps["tirh"]
    assert text.count('"exp2"') == 2
    assert '"exp"' not in text
    masks = ts.compile(ts.kernel(weigh), target="sm_80", dump=["tirh"]).dumps["tirh"]
    assert masks.count('"exp"') == 2  # what is loaded may be one
