"""Random functions of arrays: NumPy computes them in float64, `ts.jit` however its groups fall."""

import numpy as np
import pytest

import tessera as ts

POINTS = (np.tanh, np.sin, np.abs, np.negative, np.arctan)
PAIRS = (np.add, np.subtract, np.multiply, np.maximum, np.minimum)


def grow(rng, values):
    """Add one value to those that a function has, made from some of them."""
    x = values[rng.integers(len(values))]
    kind = rng.integers(11)
    if kind == 0:
        return POINTS[rng.integers(len(POINTS))](x)
    if kind == 1:
        y = values[rng.integers(len(values))]
        return PAIRS[rng.integers(len(PAIRS))](x, y)
    if kind == 2 and x.ndim:
        axis = int(rng.integers(x.ndim))
        reduction = (np.sum, np.max, np.mean, np.min)[rng.integers(4)]
        found = reduction(x, axis=axis, keepdims=bool(rng.integers(2)))
        return found * 0.25 if reduction is np.sum else found
    if kind == 3 and x.ndim > 1:
        return np.transpose(x, tuple(int(one) for one in rng.permutation(x.ndim)))
    if kind == 4 and x.ndim:
        axis = int(rng.integers(x.ndim))
        return x[(slice(None),) * axis + (slice(0, None, 2),)]
    if kind == 5 and x.ndim > 1:
        return x.reshape(-1, x.shape[-1])
    if kind == 6 and x.ndim > 1:
        return np.tanh(x @ np.swapaxes(x, -1, -2))
    if kind == 9 and x.ndim:
        axis = int(rng.integers(x.ndim))
        parts = [np.tanh(x) * 0.5, x[(slice(None),) * axis + (slice(1, None),)], np.negative(x)]
        return np.concatenate(parts[: int(rng.integers(1, 4))], axis)
    if kind == 10 and x.ndim > 1:
        return np.concatenate([x[..., 1:] * 0.5, x[..., :1]], -1)[..., ::2] + x[..., : (x.shape[-1] + 1) // 2]
    if kind == 7 and 0 < x.ndim < 4:
        return np.expand_dims(x, int(rng.integers(x.ndim + 1)))
    return np.where(x > 0.1, x, x * 0.5)


def function_of(seed, steps=14):
    def function(*given):
        rng = np.random.default_rng(seed)
        values = list(given)
        for _ in range(steps):
            try:
                values.append(grow(rng, values))
            except (ValueError, ts.TypeMismatchError):  # shapes that do not broadcast
                continue
        return tuple(values[len(given) :])

    return function


@pytest.mark.parametrize("seed", range(60))
def test_random_functions(seed):
    rng = np.random.default_rng(seed)
    shapes = [(3, 4, 5), (4, 5), (5,), (1, 5), (3, 1, 5), ()]
    function = function_of(seed)
    traced = ts.jit(function)
    for _ in range(2):
        given = [rng.standard_normal(shape) for shape in shapes]
        wanted, got = function(*given), traced(*given)
        assert len(wanted) == len(got)
        for one, other in zip(got, wanted, strict=True):
            assert one.shape == np.shape(other)
            assert np.abs(one - other).max() <= 1e-11 * (1 + np.abs(other).max())


@pytest.mark.parametrize("seed", range(14))
def test_gradients_of_random_functions(seed):
    rng = np.random.default_rng(1000 + seed)
    given = [rng.standard_normal(shape) for shape in ((3, 4), (4,), (1, 4))]
    function = function_of(1000 + seed, 7)

    def total(*given):
        return sum(np.sum(np.sin(value)) for value in function(*given))

    along = [rng.standard_normal(one.shape) for one in given]
    _, forward = ts.jvp(total, given, along)
    back = ts.grad(total, argnums=(0, 1, 2))(*given)
    inner = sum(np.sum(one * other) for one, other in zip(back, along, strict=True))
    step = 1e-6
    sides = [total(*(one + sign * step * way for one, way in zip(given, along, strict=True))) for sign in (1, -1)]
    wanted = (sides[0] - sides[1]) / (2 * step)
    assert abs(forward - inner) < 1e-10 * (1 + abs(inner))
    assert abs(forward - wanted) < 1e-5 * (1 + abs(wanted))
