"""Integers divided by numbers that are known when compiling: the quotient rounded down, and what is left."""

import numpy as np
import pytest

import tessera as ts

BY = (2, -2, -64)


def parts_of(narrow, wide):
    @ts.kernel
    def parts(
        X: ts.Tensor["n", narrow],
        Q: ts.Tensor["k", "n", narrow],
        R: ts.Tensor["k", "n", narrow],
        E: ts.Tensor["n", wide],
    ):
        for n0 in ts.tile.grid((n, 32)):
            x = X[n0 : n0 + 32].to(wide) * 3
            for row in ts.tile.static_range(len(BY)):
                Q[row, n0 : n0 + 32] = x // BY[row]
                R[row, n0 : n0 + 32] = x % BY[row]
            E[n0 : n0 + 32] = ts.tile.where(x == 3, ts.tile.full((32,), -1, wide) << (wide.bits - 1), x) // -2
        return Q, R, E

    return parts


@pytest.mark.parametrize(("narrow", "wide"), [(ts.i8, ts.i64), (ts.i16, ts.i32)])
def test_quotients_are_rounded_down(narrow, wide):
    x = np.arange(-40, 57).astype(narrow.numpy())
    by = np.array(BY)[:, None]
    results = *(np.empty((len(BY), x.size), narrow.numpy()) for _ in range(2)), np.empty(x.size, wide.numpy())
    quotient, rest, ends = parts_of(narrow, wide)(x, *results)
    least = np.iinfo(wide.numpy()).min
    tripled = x.astype(np.int64) * 3
    np.testing.assert_array_equal(quotient, (tripled // by).astype(narrow.numpy()))
    np.testing.assert_array_equal(rest, (tripled % by).astype(narrow.numpy()))
    np.testing.assert_array_equal(ends, np.where(tripled == 3, least, tripled) // -2)
