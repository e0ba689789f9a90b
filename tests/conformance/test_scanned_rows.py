"""Rows that are scanned part by part, by programs of a cluster or one part after the other, and by many warps."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.schedule.hopper import scan_rows
from tests.conformance.harness import Case, Output, Updated, check, conformance

M = 2
BACKENDS = ("interp", "scheduled-sm_90a", "ptx-sm_90a", "cuda")


@ts.function
def follow(a: Any, x: Any, b: Any, y: Any) -> Any:
    """Two steps of h = a h + x as one."""
    return a * b, b * x + y


@ts.function
def sums(row: Any) -> Any:
    return ts.tile.cumsum(row, 0)


@ts.function
def sums_back(row: Any) -> Any:
    return ts.tile.cumsum(row, 0, reverse=True) - row


@ts.function
def most(row: Any) -> Any:
    return ts.tile.scan(row - 100, 0, "max")


@ts.function
def least_back(row: Any) -> Any:
    return ts.tile.scan(row + 100, 0, "min", reverse=True)


@ts.function
def twice(row: Any) -> Any:
    return ts.tile.cumsum(ts.tile.cumsum(row, 0) % 3, 0) + ts.tile.scan(row, 0, "min")


@ts.function
def recurrence(row: Any) -> Any:
    _, h = ts.tile.associative_scan((row % 2, row), 0, follow)
    return h


def _follow(x: np.ndarray) -> np.ndarray:
    h, total = np.empty_like(x), np.zeros(len(x), x.dtype)
    for place in range(x.shape[1]):
        total = total * (x[:, place] % 2) + x[:, place]
        h[:, place] = total
    return h


MEANINGS: dict[Any, Callable[[np.ndarray], np.ndarray]] = {
    sums: lambda x: x.cumsum(1),
    sums_back: lambda x: x[:, ::-1].cumsum(1)[:, ::-1] - x,
    most: lambda x: np.maximum.accumulate(x, 1) - 100,
    least_back: lambda x: np.minimum.accumulate(x[:, ::-1], 1)[:, ::-1] + 100,
    twice: lambda x: (x.cumsum(1) % 3).cumsum(1) + np.minimum.accumulate(x, 1),
    recurrence: _follow,
}
NAMED = [body for body in MEANINGS if body is not recurrence]


def _rows(body: Any, dt: DType) -> Any:
    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            y[i, :] = body(x[i, :])

    return kernel


def _in_place(x: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        x[i, :] = ts.tile.cumsum(x[i, :], 0)


def _two_dimensions(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        y[i : i + 1, :] = ts.tile.cumsum(x[i : i + 1, :], 1)


def _small(dt: DType, size: int) -> Callable[[np.random.Generator], np.ndarray]:
    """Return what makes rows whose running sums are exact."""
    most = 2 if dt.bytes < 4 else 10
    return lambda rng: rng.integers(-most, most, (M, size)).astype(dt.numpy())


def _case(body: Any, dt: DType, size: int, **knobs: int) -> Case:
    rows = _small(dt, size)
    return Case(
        f"{body.__name__}-{dt.name}-{size}-{'-'.join(map(str, knobs.values()))}",
        _rows(body, dt),
        lambda rng: [rows(rng), Output((M, size), dt)],
        lambda x, _y: MEANINGS[body](x.astype(np.int64)).astype(x.dtype),
        knobs={"batch": 1, **knobs},
        backends=BACKENDS,
    )


SHARED = [
    _case(body, dt, size, share_rows=programs)
    for body in NAMED
    for dt, sizes in ((ts.i32, ((2, 64), (3, 90), (8, 500))), (ts.f32, ((5, 131),)), (ts.i64, ((4, 100),)))
    for programs, size in sizes
]


@conformance([*SHARED, _case(sums, ts.bf16, 96, share_rows=3), _case(most, ts.f16, 99, share_rows=4)])
def test_rows_are_shared(case: Case, backend: str):
    check(case, backend)


@conformance(
    [
        Case(
            f"{kernel.__name__}-{size}",
            kernel,
            (lambda rng, size=size: [Updated(_small(ts.i32, size)(rng))])
            if kernel is _in_place
            else lambda rng, size=size: [_small(ts.i32, size)(rng), Output((M, size), ts.i32)],
            lambda x, *_y: x.cumsum(1).astype(x.dtype),
            knobs={"batch": 1, "share_rows": programs},
            backends=BACKENDS,
        )
        for kernel in (_in_place, _two_dimensions)
        for programs, size in ((2, 64), (5, 131))
    ]
)
def test_rows_are_shared_in_place_and_as_matrices(case: Case, backend: str):
    check(case, backend)


@pytest.mark.parametrize("backend", ["scheduled-sm_90a", "ptx-sm_90a"])
@pytest.mark.parametrize("steps", [2, 3, 4, 7, 8])
@pytest.mark.parametrize(("body", "programs"), [*((body, 1) for body in MEANINGS), *((body, 3) for body in NAMED)])
def test_parts_come_one_after_the_other(
    body: Any, programs: int, steps: int, backend: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("PART", "WHOLE", "SHARED"):
        monkeypatch.setattr(scan_rows, name, 32)
    case = _case(body, ts.i32, 32 * programs * steps - 13, share_rows=programs)
    check(case, backend)


@pytest.mark.parametrize("backend", ["scheduled-sm_90a", "ptx-sm_90a"])
@pytest.mark.parametrize("size", [32 * 8 * 2 - 70, 32 * 8 * 3 + 1, 32 * 8 * 5 + 20])
@pytest.mark.parametrize("body", NAMED)
def test_some_programs_have_nothing_of_the_last_parts(
    body: Any, size: int, backend: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("PART", "WHOLE", "SHARED"):
        monkeypatch.setattr(scan_rows, name, 32)
    case = replace(_case(body, ts.i32, size), knobs={"batch": 1})
    kernel = ts.kernel.autotune(space={"batch": [1]})(_rows(body, ts.i32))
    made = ts.compile(kernel, target="sm_90a", dims={"n": size}, batch=1, dump=["ptx"])
    assert len(made.reflection["kernels"]) == 2
    assert "barrier.cluster" in made.dumps["ptx"]
    check(case, backend)


@conformance(
    [
        replace(_case(body, ts.i32, size, num_warps=warps), backends=("threads-sm_80", "ptx-sm_90a", "cuda"))
        for body in MEANINGS
        for size, warps in ((1000, 4), (1024, 8), (517, 16), (2085, 4))
    ]
)
def test_warps_tell_each_other_their_totals(case: Case, backend: str):
    check(case, backend)


@conformance(
    [
        replace(_case(body, ts.i32, size, share_rows=1), backends=("scheduled-sm_80", "scheduled-sm_90a", "ptx-sm_90a"))
        for body in MEANINGS
        for size in (2060, 4379, 5500)
    ]
)
def test_what_a_power_of_two_leaves_is_a_part_of_its_own(case: Case, backend: str):
    check(case, backend)
