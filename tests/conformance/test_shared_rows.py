"""Rows that the programs of a cluster share: each reduces a part, and they tell each other what it comes to."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import DType
from tessera.numerics.tolerances import Tolerance
from tessera.schedule.hopper import share_rows
from tests.conformance.data import normal
from tests.conformance.harness import Case, Output, Updated, check, conformance
from tests.conformance.test_held_rows import LIE, centred, converted, held, weighted
from tests.conformance.test_rows_anywhere import ALIKE, rows

M = 3
BACKENDS = ("interp", "scheduled-sm_90a", "ptx-sm_90a", "cuda")


def normalised(dt: DType) -> Any:
    """Return a LayerNorm that adds a second row first and stores sum, mean and scale as well."""
    matrix, vector, column = ts.Tensor["m", "n", dt], ts.Tensor["n", dt], ts.Tensor["m", ts.f32]

    def kernel(x: matrix, r: matrix, w: vector, b: vector, h: matrix, y: matrix, mean: column, scale: column):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :].to(ts.f32) + r[i, :].to(ts.f32)
            h[i, :] = row
            middle = ts.tile.sum(row) / n
            apart = row - middle
            factor = ts.tile.rsqrt(ts.tile.sum(apart * apart) / n + 1e-5)
            mean[i] = middle
            scale[i] = factor
            y[i, :] = apart * factor * w[:] + b[:]

    return kernel


def softmax(dt: DType) -> Any:
    """Return a softmax: two numbers, one of which needs the other."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :].to(ts.f32)
            powers = ts.tile.exp(row - ts.tile.max(row))
            y[i, :] = powers / ts.tile.sum(powers)

    return kernel


def ends(dt: DType) -> Any:
    """Return a kernel that needs two numbers at once, and the place of one."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt], where: ts.Tensor["m", ts.i32]):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :]
            least, most = ts.tile.min(row), ts.tile.max(row)
            y[i, :] = ts.tile.where(row == most, least, row + most)
            where[i] = ts.tile.argmax(row)

    return kernel


def in_place(dt: DType) -> Any:
    """Return a kernel that stores rows over themselves."""

    def kernel(x: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :]
            x[i, :] = row + ts.tile.max(row)

    return kernel


def _whole(dt: DType, size: int) -> Any:
    """Return what makes rows whose sums of two are exact in any dtype."""
    return lambda rng: rng.integers(-60, 60, (M, size)).astype(dt.numpy())


def _centred(x: np.ndarray) -> np.ndarray:
    return x - x.min(1, keepdims=True)


def _raised(x: np.ndarray) -> np.ndarray:
    return x + x.max(1, keepdims=True)


def _ends(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    least, most = x.min(1, keepdims=True), x.max(1, keepdims=True)
    return np.where(x == most, least, x + most), x.argmax(1)


SIZES = {2: (64, 72, 136), 3: (96, 104), 4: (256, 264), 5: (248,), 7: (440,), 8: (512, 520)}
"""By programs: parts that divide a row, and others, the last of which is short or has one access."""
ANYWHERE = {2: (63, 65), 3: (103,), 4: (253,), 5: (251,), 7: (447,), 8: (509, 515)}
"""The same of rows that begin at any element."""


def _exact(dt: DType, programs: int, size: int) -> list[Case]:
    name, knobs, rows = f"{dt.name}-{size}-{programs}", {"share_rows": programs, "batch": 1}, _whole(dt, size)
    result = Output((M, size), dt)
    return [
        Case(f"centred-{name}", centred(dt), lambda rng: [rows(rng), result], lambda x, _y: _centred(x), knobs=knobs),
        Case(f"in-place-{name}", in_place(dt), lambda rng: [Updated(rows(rng))], _raised, knobs=knobs),
        Case(
            f"ends-{name}",
            ends(dt),
            lambda rng: [rows(rng), result, Output((M,), ts.i32)],
            lambda x, _y, _where: _ends(x),
            knobs=knobs,
        ),
    ]


EXACT_CASES = [
    replace(case, backends=BACKENDS)
    for dt, every in ((ts.f32, True), (ts.bf16, False), (ts.i32, False), (ts.f64, False))
    for found in (SIZES, ANYWHERE)
    for programs, sizes in found.items()
    for size in (sizes if every else sizes[:1])
    for case in _exact(dt, programs, size)
]


@conformance(EXACT_CASES)
def test_rows_that_need_extremes_are_shared(case: Case, backend: str):
    check(case, backend)


def _normalised(x: Any, r: Any, w: Any, b: Any, *_results: Any) -> tuple[Any, ...]:
    dt = x.dtype
    row = x.astype(np.float64) + r.astype(np.float64)
    middle = row.mean(1, keepdims=True)
    scale = 1 / np.sqrt(((row - middle) ** 2).mean(1, keepdims=True) + 1e-5)
    result = (row - middle) * scale * w.astype(np.float64) + b.astype(np.float64)
    return row.astype(dt), result.astype(dt), middle[:, 0], scale[:, 0]


def _softmax(x: Any, _y: Any) -> Any:
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True).astype(np.float64))
    return powers / powers.sum(1, keepdims=True)


def _sums(dt: DType, programs: int, size: int) -> list[Case]:
    tolerance = Tolerance(1e-5, absolute=1e-5) if dt is ts.f32 else Tolerance(2**-7, absolute=1e-2)
    name, knobs = f"{dt.name}-{size}-{programs}", {"share_rows": programs, "batch": 1}
    column = Output((M,), ts.f32)
    row = Output((M, size), dt)

    def operands(rng: np.random.Generator) -> list[Any]:
        vectors = [normal(rng, (size,), dt), normal(rng, (size,), dt)]
        return [normal(rng, (M, size), dt), normal(rng, (M, size), dt), *vectors, row, row, column, column]

    return [
        Case(f"normalised-{name}", normalised(dt), operands, _normalised, tolerance, knobs=knobs, backends=BACKENDS),
        Case(
            f"softmax-{name}",
            softmax(dt),
            lambda rng: [normal(rng, (M, size), dt), row],
            _softmax,
            tolerance,
            knobs=knobs,
            backends=BACKENDS,
        ),
    ]


@conformance(
    [
        case
        for dt in (ts.f32, ts.bf16)
        for found in (SIZES, ANYWHERE)
        for programs, sizes in found.items()
        for size in sizes[:2]
        for case in _sums(dt, programs, size)
    ]
)
def test_rows_that_need_sums_are_shared(case: Case, backend: str):
    check(case, backend)


@conformance(
    [
        held(make, name, n, *lie, {"share_rows": programs})
        for make, name, sizes in (
            (centred, "bf16", (4133, 5002)),
            (converted, "bf16", (4133, 5002)),
            (centred, "f32", (2200, 3071)),
            (weighted, "f32", (2201,)),
            (centred, "u8", (8309,)),
        )
        for programs, n in zip((2, 3), sizes, strict=False)
        for lie in (ALIKE, LIE, ((1, 0, 0), (0, 0, 0)), ((0, 1, 2), (3, 1, 5)))
    ]
)
def test_shared_rows_lie_anywhere(case: Case, backend: str):
    check(case, backend)


def narrowed(x: ts.Tensor["m", "n", ts.f32], w: ts.Tensor["n", ts.u8], y: ts.Tensor["m", "n", ts.f16]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        y[i, :] = row - ts.tile.min(row) + w[:]


@conformance(
    [
        Case(
            f"{n}-{before}",
            narrowed,
            lambda rng, n=n, before=before: [
                rows(rng, n, ts.f32, before, 0),
                rng.integers(0, 99, n).astype(np.uint8),
                Updated(rows(rng, n, ts.f16, 0, 0)),
            ],
            lambda x, w, _y: (x - x.min(1, keepdims=True) + w).astype(np.float16),
            knobs={"share_rows": 2, "batch": 1},
            backends=BACKENDS,
        )
        for n in (160, 2208, 2209)
        for before in (0, 1)
    ]
)
def test_vectors_of_narrower_elements_lie_as_they_do(case: Case, backend: str):
    check(case, backend)


@pytest.mark.parametrize("width", [4133, 81645])
def test_rows_that_lie_anywhere_are_shared_at_aligned_places(width: int):
    kernel = ts.kernel.autotune(space={"share_rows": [6]})(softmax(ts.bf16))
    made = ts.compile(kernel, target="sm_90a", dims={"n": width}, share_rows=6, dump=["tirh", "ptx"])
    assert "6 programs share a row" in str(made.dumps["tirh"])
    assert "st.global.v4.b32" in str(made.dumps["ptx"])
    assert all(kernel["spill_store_bytes"] == 0 for kernel in made.reflection["kernels"].values())


@pytest.mark.parametrize("size", [96, 520])
@pytest.mark.parametrize(("make", "meaning"), [(softmax, _softmax), (centred, lambda x, _y: _centred(x))])
def test_few_rows_have_a_launch_of_their_own(make: Any, meaning: Any, size: int, monkeypatch: pytest.MonkeyPatch):
    for name, value in (("KEPT_ELEMENTS", 64), ("PART", 32)):
        monkeypatch.setattr(share_rows, name, value)
    rows = _whole(ts.f32, size)
    case = Case(
        f"few-{make.__name__}-{size}",
        make(ts.f32),
        lambda rng: [rows(rng), Output((M, size), ts.f32)],
        meaning,
        Tolerance(1e-5, absolute=1e-6),
        knobs={"batch": 1},
    )
    kernel = ts.kernel.autotune(space={"batch": [1]})(make(ts.f32))
    made = ts.compile(kernel, target="sm_90a", dims={"n": size}, batch=1, dump=["ptx"])
    assert len(made.reflection["kernels"]) == 2
    assert "barrier.cluster" in made.dumps["ptx"]
    check(case, "ptx-sm_90a")
