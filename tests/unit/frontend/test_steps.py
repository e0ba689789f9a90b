"""Slices of tensors with steps: the elements that NumPy names, bounded, never counted from the end at run time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tessera as ts
from tests.unit.frontend.support import run


def every_second(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8 : 2] = x[i + 1 : i + 9 : 2]
        y[i + 1 : i + 8 : 2] = x[i + 7 : i - 1 : -2]


@pytest.mark.parametrize("size", [16, 13, 8, 1])
def test_run_time_starts_are_bounded(size):
    x, y = np.arange(1, size + 1, dtype=np.float32), np.zeros(size, np.float32)
    run(every_second, x, y)
    room, wanted = np.zeros(size + 24, np.float32), np.zeros(size + 24, np.float32)
    room[:size] = x
    for i in range(0, size, 8):
        wanted[i : i + 8 : 2] = room[i + 1 : i + 9 : 2]
        wanted[i + 1 : i + 8 : 2] = room[i : i + 8][::-2]
    assert np.array_equal(y, wanted[:size])


BOUNDS = [
    (low, high, step)
    for low, high, step in itertools.product((None, 0, 3, 9), (None, 0, 2, 5, 10), (1, 2, 3, -1, -3))
    if len(range(12)[low:high:step]) > 0
]


def taking(low, high, step):
    def kernel(x: ts.Tensor["n", ts.f32], y: ts.Tensor["m", ts.f32]):
        y[:] = x[low:high:step]

    return kernel


def test_compile_time_bounds_are_those_of_numpy():
    x = np.arange(12, dtype=np.float32)
    for bounds in BOUNDS:
        wanted = x[slice(*bounds)]
        got = np.zeros(len(wanted), np.float32)
        run(taking(*bounds), x, got)
        assert np.array_equal(got, wanted), bounds


def mixed(x: ts.Tensor["m", "n", ts.f32], rows: ts.Tensor["r", ts.i32], y: ts.Tensor["r", "k", ts.f32]):
    picked = rows[:]
    y[::-1, :] = x[picked, 1:10:3]
    y[0, :] = ts.tile.load(x[9, ::-3], fill=7.0)
    y[1:2, :] = x[1, 2:5][None]


def test_steps_among_index_tiles_and_integers():
    x, rows, y = np.arange(60, dtype=np.float32).reshape(5, 12), np.array([4, 0, 2], np.int32), np.zeros((3, 3), "f4")
    x = x[:, :9]
    wanted = x[rows][:, 1:10:3][::-1].copy()
    wanted[0] = 7.0
    wanted[1] = x[1, 2:5]
    run(mixed, x, rows, y)
    assert np.array_equal(y, wanted)


def predicated(x: ts.Tensor["n", ts.f32], y: ts.Tensor["n", ts.f32]):
    value = x[6::-2]
    if value > 3.0:
        y[1:8:2] = value


def test_conditions_leave_elements_out():
    x, y = np.arange(8, dtype=np.float32), np.full(8, -1, np.float32)
    run(predicated, x, y)
    assert np.array_equal(y, [-1, 6, -1, 4, -1, -1, -1, -1])
