"""Division by what many elements share: a product with the reciprocal under `fast`, IEEE division otherwise."""

import numpy as np
import pytest

import tessera as ts


def shares_for(dtype):
    @ts.kernel
    def shares(X: ts.Tensor["M", "N", dtype], D: ts.Tensor["M", dtype], Y: ts.Tensor["M", "N", dtype]):
        for m in ts.tile.grid((M, 4)):
            Y[m : m + 4, :] = X[m : m + 4, :] / D[m : m + 4][:, None]
        return Y

    return shares


@ts.kernel
def tenths(X: ts.Tensor["N", ts.f32], p: ts.f32, Y: ts.Tensor["N", ts.f32]):
    for n in ts.tile.grid((N, 256)):
        Y[n : n + 256] = X[n : n + 256] / 10.0 + X[n : n + 256] / p
    return Y


@ts.kernel
def quotients(X: ts.Tensor["N", ts.f32], D: ts.Tensor["N", ts.f32], Y: ts.Tensor["N", ts.f32]):
    for n in ts.tile.grid((N, 256)):
        Y[n : n + 256] = X[n : n + 256] / D[n : n + 256]
    return Y


def case(rng, dtype):
    x = (rng.standard_normal((37, 301)) * 10.0 ** rng.uniform(-20, 20, (37, 301))).astype(dtype)
    return x, (rng.standard_normal(37) * 10.0 ** rng.uniform(-10, 10, 37)).astype(dtype)


@pytest.mark.parametrize("dtype", [ts.f32, ts.f64])
def test_fast_quotients_by_a_rows_divisor_are_within_an_ulp_and_a_half(dtype):
    wide = np.float64 if dtype is ts.f32 else np.longdouble
    x, d = case(np.random.default_rng(0), dtype.numpy())
    got = shares_for(dtype)(x, d, np.empty_like(x))
    exact = x.astype(wide) / d[:, None].astype(wide)
    assert np.all(np.abs(got - exact) <= 1.5 * np.spacing(np.abs(exact).astype(x.dtype)))


def test_infinities_zeros_and_nan_divide_as_ever():
    x, d = np.meshgrid(*[np.array([0.0, -0.0, 1.0, -(2.0**60), np.inf, -np.inf, np.nan], np.float32)] * 2)
    with np.errstate(all="ignore"):
        expected = x / d[:, :1]
    np.testing.assert_array_equal(shares_for(ts.f32)(x.copy(), d[:, 0].copy(), np.empty_like(x)), expected)


@pytest.mark.parametrize("profile", ["deterministic", "strict"])
def test_other_profiles_divide(profile):
    x, d = case(np.random.default_rng(1), np.float32)
    with ts.numerics.profile(profile):
        got = shares_for(ts.f32)(x, d, np.empty_like(x))
        row = tenths(x[0].copy(), 3.0, np.empty_like(x[0]))
    np.testing.assert_array_equal(got, x / d[:, None])
    np.testing.assert_array_equal(row, x[0] / np.float32(10) + x[0] / np.float32(3))


def test_one_division_serves_a_loop_and_elements_with_divisors_of_their_own_keep_theirs():
    def divisions(kernel):
        ll = ts.compile(kernel, target="x86-64-v4", dump=["ll"], dims={"N": 512}).dumps["ll"]
        return ll.count("fdiv float"), ll.count("fdiv <")

    assert divisions(tenths)[1] == 0
    assert divisions(quotients)[1] > 0
    assert divisions(shares_for(ts.bf16))[0] == 0
