"""Values that cannot be written as text, in calls: the error is that of the call."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera.errors import CallError

HUGE = 10**5000


class Unwritable:
    """An object whose text cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@ts.kernel
def fill(y: ts.Tensor["n", ts.f32], s: ts.i32, large: ts.constexpr = 1, flag: bool = False):
    """Store 1 where the constant is large."""
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8] = ts.tile.full((8,), 1.0 if large > 5 else 2.0, ts.f32)
    return y


Y = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((Y, HUGE), "wrong-scalar"),
        ((Y, Unwritable()), "wrong-scalar"),
        ((Y, 1, 1, HUGE), "wrong-constexpr"),
        ((Y, 1, 1, Unwritable()), "wrong-constexpr"),
        ((HUGE, 1), "not-an-array"),
        (([HUGE], 1), "not-an-array"),
        ((Unwritable(), 1), "not-an-array"),
    ],
    ids=range(7),
)
def test_a_wrong_argument_without_text(args, code):
    with pytest.raises(CallError) as caught:
        fill(*args)
    assert caught.value.code == code


def test_a_constant_of_any_length():
    assert fill(Y, 1, HUGE)[0] == 1.0
    assert fill(Y, 1, -HUGE)[0] == 2.0


@ts.kernel
def scaled(y: ts.Tensor["n", ts.f32], s: ts.bf16):
    """Store a scalar."""
    for i in ts.tile.grid((n, 8)):
        y[i : i + 8] = ts.tile.full((8,), s.to(ts.f32), ts.f32)
    return y


@pytest.mark.parametrize("scalar", [1e308, -3.4e38 * 2, 3.4e38])
def test_a_scalar_beyond_a_narrow_float(scalar):
    with pytest.raises(CallError) as caught:
        scaled(Y, scalar)
    assert caught.value.code == "wrong-scalar"


def test_infinite_scalars_stay():
    assert scaled(Y, float("inf"))[0] == np.inf
    assert scaled(Y, 2.0)[0] == 2.0
