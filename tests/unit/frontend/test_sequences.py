"""`len`, `tuple`, `enumerate`, `zip` and `reversed` of tuples of anything are what they are in Python."""

import numpy as np

import tessera as ts
from tests.unit.frontend.support import run

PAIRS = ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))


def several(x):
    """Return what both CPython, on arrays, and a kernel compute."""
    total = x * 0.0
    for at, factor in enumerate((1.0, 2.0), 1):
        total = total * factor + at
    for a, b in zip((1.0, total, x), (x, 4.0), strict=False):
        total = total + a * b
    for part in reversed((x, 2.0 * x, 5.0)):
        total = total * 0.5 - part
    for at, ((a, b), part) in enumerate(zip(PAIRS, (x, x + 1.0, total), strict=True)):
        total = total + (a - b) * part + at
    kept = tuple(reversed((x, total)))
    return kept[0] + len(kept) * len((x, (total, x), 3.0))


@ts.function
def counted(*values):
    return values[0] + len(values)


def test_functions_of_tuples_are_those_of_python():
    inlined = ts.function(several)

    def kernel(x: ts.Tensor[16, ts.f64], y: ts.Tensor[16, ts.f64]):
        y[:] = inlined(x[:])

    x, y = np.arange(16.0) / 7, np.zeros(16)
    run(kernel, x, y)
    np.testing.assert_allclose(y, several(x), rtol=1e-14)


def test_steps_of_a_loop_at_compile_time_are_a_tuple():
    def kernel(y: ts.Tensor[4, ts.i64]):
        steps = ts.tile.static_range(5, 0, -2)
        for at, step in enumerate(steps):
            y[at] = step
        y[3] = len(steps) + counted(10, y[0], 2)

    y = np.zeros(4, np.int64)
    run(kernel, y)
    np.testing.assert_array_equal(y, [5, 3, 1, 16])
