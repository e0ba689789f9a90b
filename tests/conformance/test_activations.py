"""Activations against float64, and variances of numbers whose mean is many times larger than their deviations."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import Tolerance
from tests.conformance.harness import Case, Output, check, conformance, dtype

COUNT = 200
UNIT = {"f32": 2.0**-23, "f64": 2.0**-52, "bf16": 2.0**-8, "f16": 2.0**-10}


def activations(dt: Any) -> Callable[..., Any]:
    def kernel(x: ts.Tensor[COUNT, dt], y: ts.Tensor[9, COUNT, dt]):
        v = x[:]
        y[0, :] = ts.tile.mish(v)
        y[1, :] = ts.tile.elu(v)
        y[2, :] = ts.tile.elu(v, alpha=0.25)
        y[3, :] = ts.tile.selu(v)
        y[4, :] = ts.tile.leaky_relu(v, 0.125)
        y[5, :] = ts.tile.hardsigmoid(v)
        y[6, :] = ts.tile.hardswish(v)
        y[7, :] = ts.tile.swiglu(v, 0.5)
        y[8, :] = ts.tile.geglu(v, 2.0)

    return kernel


def _activations(x: np.ndarray, y: Any) -> np.ndarray:
    x = x.astype(np.float64)
    below = np.expm1(np.minimum(x, 0))
    ramp = np.clip(x + 3, 0, 6) / 6
    bell = 0.5 * np.vectorize(math.erfc)(-x * math.sqrt(0.5))
    return np.stack(
        [
            x * np.tanh(np.logaddexp(0, x)),
            np.where(x > 0, x, below),
            np.where(x > 0, x, 0.25 * below),
            1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * below),
            np.where(x > 0, x, 0.125 * x),
            ramp,
            x * ramp,
            0.5 * x / (1 + np.exp(-x)),
            2.0 * x * bell,
        ]
    )


@conformance(
    [
        Case(
            name,
            activations(dtype(name)),
            lambda rng, name=name: [
                np.concatenate([rng.uniform(-12, 12, COUNT - 6), [0, -0.0, 30, -30, 1e-3, -1e-3]]).astype(
                    dtype(name).numpy()
                ),
                Output((9, COUNT), dtype(name)),
            ],
            _activations,
            Tolerance(relative=8 * unit, absolute=min(8 * unit, 1e-6)),
        )
        for name, unit in UNIT.items()
    ]
)
def test_activations(case, backend):
    check(case, backend)


def statistics(x: ts.Tensor[6, 96, ts.f32], var: ts.Tensor[6, ts.f32], both: ts.Tensor[3, 6, ts.f32]):
    var[:] = x[:, :].var(1)
    n, mean, off = ts.tile.zeros((6,), ts.f32), ts.tile.zeros((6,), ts.f32), ts.tile.zeros((6,), ts.f32)
    for k in ts.tile.range(0, 96, 32):
        part = x[:, k : k + 32]
        n, mean, off = ts.tile.combine_moments(n, mean, off, 32.0, part.mean(1), part.var(1) * 32.0)
    both[0, :] = n
    both[1, :] = mean
    both[2, :] = off / n


def _statistics(x: np.ndarray, *_: Any) -> tuple[np.ndarray, np.ndarray]:
    wide = x.astype(np.float64)
    return wide.var(1), np.stack([np.full(6, 96.0), wide.mean(1), wide.var(1)])


def far_from_zero(rng: np.random.Generator) -> np.ndarray:
    """Return rows whose means are up to 2^25 times their deviations: the means are no f32, the numbers are."""
    means = np.array([0, 1e3, 1e6, 2.0**24, -(2.0**25), 1e8])
    spacing = np.maximum(np.spacing(np.abs(means).astype(np.float32)).astype(np.float64), 2.0**-10)
    return (means[:, None] + spacing[:, None] * rng.integers(-3, 4, (6, 96))).astype(np.float32)


@conformance(
    [
        Case(
            "large-means",
            statistics,
            lambda rng: [far_from_zero(rng), Output((6,), ts.f32), Output((3, 6), ts.f32)],
            _statistics,
            # The parts' means of f32 are off by half a unit of the last place each, which is an eighth of a deviation.
            [Tolerance(relative=1e-5), Tolerance(relative=0.05)],
        ),
        Case(
            "moderate-means",
            statistics,
            lambda rng: [
                (rng.normal(size=(6, 96)) + np.arange(6)[:, None] * 20).astype(np.float32),
                Output((6,), ts.f32),
                Output((3, 6), ts.f32),
            ],
            _statistics,
            [Tolerance(relative=1e-6), Tolerance(relative=2e-5, absolute=1e-6)],
        ),
    ]
)
def test_variances(case, backend):
    check(case, backend)


def normalised(x: ts.Tensor[4, 50, ts.f32], y: ts.Tensor[4, 50, ts.f32]):
    y[:, :] = ts.tile.log_softmax(x[:, :])


@conformance(
    [
        Case(
            "log-softmax",
            normalised,
            lambda rng: [(rng.normal(size=(4, 50)) * 30).astype(np.float32), Output((4, 50), ts.f32)],
            lambda x, y: x.astype(np.float64) - np.logaddexp.reduce(x.astype(np.float64), axis=1, keepdims=True),
            Tolerance(relative=2e-6, absolute=2e-6),
        )
    ]
)
def test_log_softmax(case, backend):
    check(case, backend)
