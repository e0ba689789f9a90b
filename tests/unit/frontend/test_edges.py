"""Arguments at and beyond what functions take: what has no meaning is a typed error, whatever the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import TesseraError
from tests.unit.frontend.support import built, run

I8, F8 = ts.Tensor[8, ts.i32], ts.Tensor[8, ts.f32]


def reverse_at_run_time(x: F8, s: ts.i32):
    x[0:8] = ts.tile.cumsum(x[0:8], 0, reverse=s > 1)


def keepdims_at_run_time(x: F8, s: ts.i32):
    x[0:8] = x[0:8].sum(axis=0, keepdims=s)


def approximate_by_a_tile(x: F8):
    x[0:8] = ts.tile.gelu(x[0:8], approximate=x[0:8] > 1.0)


def descending_by_a_tuple(x: F8):
    x[0:8] = ts.tile.sort(x[0:8], descending=(1,))


def blocks_of_none(x: I8):
    x[0:8] = ts.cdiv(x[0:8], 0)


def blocks_of_less(x: I8):
    x[0:8] = ts.cdiv(x[0:8], -2)


def power_of_a_tile(x: I8):
    x[0:8] = 3 ** x[0:8]


def arange_beyond_i8(x: I8):
    x[0:8] = ts.tile.arange(124, 132, dtype=ts.i8)


def arange_beyond_i32(x: I8):
    x[0:8] = ts.tile.arange(2**31 - 4, 2**31 + 4)


def arange_of_bool(x: I8):
    x[0:8] = ts.tile.arange(8, dtype=ts.bool_)


def endless(x: F8):
    for _ in ts.tile.static_range(2**70):
        x[0:8] = 0.0


def many_in_flight(x: F8):
    ts.tile.wait_group(2**33)


def pipeline_of_many(x: F8):
    ts.tile.pipeline.wait(pending=2**70)


def large_buffer(x: F8):
    ts.tile.alloc_shared(2**70, ts.f32)


def many_barriers(x: F8):
    ts.tile.mbarrier.alloc(2**70)


def many_stages(x: F8, slot: ts.i32):
    ts.tile.pipeline.swap(slot, stages=2**70)


def a_grid_alone(x: F8):
    ts.tile.grid((8, 4))
    x[0:8] = 0.0


def a_loop_alone(x: F8):
    ts.tile.range(8)
    x[0:8] = 0.0


def a_static_loop_alone(x: F8):
    ts.tile.static_range(8)
    x[0:8] = 0.0


def a_role_alone(x: F8):
    for i in ts.tile.grid((8, 8)):
        ts.tile.role("producer")
        x[i : i + 8] = 0.0


def add_of_nothing(x: I8):
    ts.tile.atomic_add(x[0:8], None)


def exchange_with_nothing(x: I8):
    ts.tile.atomic_compare_exchange(x[0:8], None, 1)


def add_of_bools(x: ts.Tensor[8, ts.bool_]):
    ts.tile.atomic_add(x[0:8], x[0:8])


@pytest.mark.parametrize(
    ("kernel", "code"),
    [
        (reverse_at_run_time, "bad-argument"),
        (keepdims_at_run_time, "bad-argument"),
        (approximate_by_a_tile, "bad-argument"),
        (descending_by_a_tuple, "bad-argument"),
        (blocks_of_none, "bad-argument"),
        (blocks_of_less, "bad-argument"),
        (power_of_a_tile, "dtype-mismatch"),
        (arange_beyond_i8, "constant-range"),
        (arange_beyond_i32, "constant-range"),
        (arange_of_bool, "dtype-mismatch"),
        (endless, "bad-range"),
        (many_in_flight, "bad-argument"),
        (pipeline_of_many, "bad-argument"),
        (large_buffer, "tile-too-large"),
        (many_barriers, "bad-argument"),
        (many_stages, "bad-argument"),
        (a_grid_alone, "unsupported-syntax"),
        (a_loop_alone, "unsupported-syntax"),
        (a_static_loop_alone, "unsupported-syntax"),
        (a_role_alone, "unsupported-syntax"),
        (add_of_nothing, "not-a-value"),
        (exchange_with_nothing, "not-a-value"),
        (add_of_bools, "dtype-mismatch"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_has_no_meaning_is_an_error(kernel: Callable[..., None], code: str) -> None:
    with pytest.raises(TesseraError) as caught:
        built(kernel)
    assert caught.value.code == code


def at_the_edge(x: ts.Tensor[8, ts.i64], y: ts.Tensor[8, ts.f64]):
    x[0:8] = ts.tile.arange(120, 128, dtype=ts.i8) + ts.tile.arange(2**31 - 8, 2**31)
    y[0:8] = ts.tile.arange(2**40, 2**40 + 8, dtype=ts.f64) + 2.0 ** ts.tile.arange(8)
    return x, y


def test_what_just_fits() -> None:
    found: Any = run(at_the_edge, np.zeros(8, np.int64), np.zeros(8))
    places = np.arange(8)
    np.testing.assert_array_equal(found[0], (np.arange(2**31 - 8, 2**31) + np.arange(120, 128)).astype(np.int32))
    np.testing.assert_array_equal(found[1], 2.0**40 + places + 2.0**places)
