"""Tiles of several sizes and dtypes, one after the other: along each dimension, loaded, computed, cut from others."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tests.conformance.data import integers
from tests.conformance.harness import BACKENDS, Case, Output, check, conformance

EVERYWHERE = (*BACKENDS, "ptx-sm_80", "ptx-sm_90a")


def lines(x: ts.Tensor["m", "k", ts.i32], y: ts.Tensor["m", "l", ts.i16], z: ts.Tensor["m", "k+l+2", ts.i32]):
    for i in ts.tile.grid((m, 4)):
        a, b = x[i : i + 4, :], y[i : i + 4, :]
        z[i : i + 4, :] = ts.tile.concatenate((b * 3, a, a[:, :2]), axis=-1)


def heights(x: ts.Tensor["k", "m", ts.i32], y: ts.Tensor["l", "m", ts.i16], z: ts.Tensor["k+l+2", "m", ts.i32]):
    for i in ts.tile.grid((m, 4)):
        a, b = x[:, i : i + 4], y[:, i : i + 4]
        z[:, i : i + 4] = ts.tile.concatenate([a, b * 3, a[2:0:-1, :]])


def middles(x: ts.Tensor[3, "k", 5, ts.i32], y: ts.Tensor[3, "l", 5, ts.i16], z: ts.Tensor[3, "k+l", 5, ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        z[:, :, :] = ts.tile.concatenate((x[:, :, :], y[:, :, :]), axis=1) + 1


def carried(x: ts.Tensor["n", ts.i32], z: ts.Tensor["n", ts.i32]):
    """A queue of the last five elements, each time three go in."""
    queue = ts.tile.zeros((5,), ts.i32)
    for k in ts.tile.range(0, n, 3):
        queue = ts.tile.concatenate((queue[3:], x[k : k + 3]))
        z[k : k + 3] = queue[0:3] + queue[4]


def carried_reference(x, _z):
    queue, out = [0] * 5, []
    for k in range(0, len(x), 3):
        queue = [*queue[3:], *x[k : k + 3]]
        out += [each + queue[4] for each in queue[:3]]
    return np.array(out, np.int32)


def _arguments(first, second, whole):
    return lambda rng: [integers(rng, first, ts.i32), integers(rng, second, ts.i16), Output(whole, ts.i32)]


CASES = [
    case
    for first, second in ((3, 5), (8, 1), (16, 9), (33, 31))
    for case in (
        Case(
            f"lines-{first}-{second}",
            lines,
            _arguments((7, first), (7, second), (7, first + second + 2)),
            lambda x, y, _z: np.concatenate([y * np.int16(3), x, x[:, :2]], 1),
            backends=EVERYWHERE,
        ),
        Case(
            f"heights-{first}-{second}",
            heights,
            _arguments((first, 7), (second, 7), (first + second + 2, 7)),
            lambda x, y, _z: np.concatenate([x, y * np.int16(3), x[2:0:-1]]),
            backends=EVERYWHERE,
        ),
        Case(
            f"middles-{first}-{second}",
            middles,
            _arguments((3, first, 5), (3, second, 5), (3, first + second, 5)),
            lambda x, y, _z: np.concatenate([x, y], 1) + 1,
            backends=EVERYWHERE,
        ),
    )
] + [
    Case(
        "carried",
        carried,
        lambda rng: [integers(rng, (21,), ts.i32), Output((21,), ts.i32)],
        carried_reference,
        backends=EVERYWHERE,
    )
]


@conformance(CASES)
def test_tiles_of_several_sizes(case, backend):
    check(case, backend)


def rotations(x: ts.Tensor["n", ts.u32], n_: ts.Tensor["n", ts.i64], y: ts.Tensor["n", ts.u32], s: ts.i64):
    for i in ts.tile.grid((n, 16)):
        v = x[i : i + 16]
        by = n_[i : i + 16]
        y[i : i + 16] = ts.tile.rotl(v, by) + ts.tile.rotr(v, by.to(ts.i8)) + ts.tile.rotl(v, s) + ts.tile.rotr(v, 100)


def rotations_reference(x, n_, _y, s):
    def left(value, by):
        by = int(by) % 32
        return ((int(value) << by) | (int(value) >> (32 - by))) % 2**32

    sums = [left(v, n) + left(v, -n) + left(v, s) + left(v, -100) for v, n in zip(x, n_, strict=True)]
    return np.array([each % 2**32 for each in sums], np.uint32)


@conformance(
    [
        Case(
            "rotations",
            rotations,
            lambda rng: [
                rng.integers(0, 2**32, 20, dtype=np.uint32),
                rng.integers(-(2**62), 2**62, 20),
                Output((20,), ts.u32),
                -(2**40) - 5,
            ],
            rotations_reference,
            backends=EVERYWHERE,
        )
    ]
)
def test_rotations_have_the_width_of_what_is_rotated(case, backend):
    check(case, backend)


@pytest.mark.parametrize("value", [1, -(2**31), 2**31, True, 0.5])
def test_numbers_become_tiles_of_the_types_that_functions_share(value):
    of_size = ts.i64 if isinstance(value, int) and not isinstance(value, bool) else None

    def kernel(y: ts.Tensor[4, ts.f64]):
        full, repeated = ts.tile.full((4,), value), ts.tile.broadcast_to(value, (4,))
        chosen = ts.tile.where(ts.tile.arange(4) > 1, value, value)
        y[:] = full.to(ts.f64) + repeated.to(ts.f64) + chosen.to(ts.f64)
        if full.dtype == chosen.dtype and repeated.dtype == (full.dtype if of_size is None else of_size):
            y[0] = 7.0

    y = np.zeros(4)
    ts.kernel(kernel)(y)
    assert y.tolist() == [7.0] + [3 * float(value)] * 3
