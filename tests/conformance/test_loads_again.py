"""Rows that are loaded twice: the second time is what was written between, by whatever writes, or the same tile."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.conformance.harness import BACKENDS, Case, Output, Updated, check, conformance


@ts.function
def write_rows(x: Any, y: Any, i: Any, first: Any, how: Any) -> None:
    if how == "other":
        y[i, :] = first + 1
    elif how == "box":
        x[i, :] = first + 1
    elif how == "branch":
        if i % 2 == 0:
            x[i, :] = first * 2
    elif how == "carried":
        for _ in ts.tile.range(3):
            x[i, :] = x[i, :] + first
    elif how == "inside":
        for _ in ts.tile.range(2):
            y[i, :] = y[i, :] + x[i, :]


@ts.function
def write_elements(x: Any, i: Any, how: Any) -> None:
    if how == "part":
        x[i, 3:9] = ts.tile.full((6,), 7.0, ts.f32)
    elif how == "element":
        x[i, 5] = 8.0
    elif how == "places":
        x[i, ts.tile.arange(4) * 3] = ts.tile.full((4,), 9.0, ts.f32)
    elif how == "atomic":
        ts.tile.atomic_add(x[i, 2], 1.0)
    elif how == "loop":
        for k in ts.tile.range(3):
            x[i, k] = 4.0


Rows = ts.Tensor["M", "N", ts.f32]


def between(x: Rows, y: Rows, z: Rows, how: ts.constexpr):
    for i in ts.tile.grid((M, 1)):
        first = x[i, :]
        write_rows(x, y, i, first, how)
        write_elements(x, i, how)
        z[i, :] = x[i, :] * 2 - first


def written(how: str) -> list[bool]:
    """Return whether x and y are."""
    return [how not in ("nothing", "other", "inside"), how in ("other", "inside")]


def arrays(rng: np.random.Generator, width: int, how: str) -> list[np.ndarray | Updated]:
    found = [rng.integers(-8, 9, (5, width)).astype(np.float32) for _ in "xy"]
    return [Updated(array) if is_written else array for array, is_written in zip(found, written(how), strict=True)]


def stored(x: np.ndarray, columns: Any, value: Any) -> None:
    x[:, columns] = value


MEANINGS: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "nothing": lambda _x, _y: None,
    "other": lambda x, y: np.copyto(y, x + 1),
    "box": lambda x, _y: np.copyto(x, x + 1),
    "part": lambda x, _y: stored(x, slice(3, 9), 7),
    "element": lambda x, _y: stored(x, 5, 8),
    "places": lambda x, _y: stored(x, slice(0, 12, 3), 9),
    "atomic": lambda x, _y: stored(x, 2, x[:, 2] + 1),
    "branch": lambda x, _y: np.copyto(x[::2], 2 * x[::2]),
    "loop": lambda x, _y: stored(x, slice(3), 4),
    "carried": lambda x, _y: np.copyto(x, 4 * x),
    "inside": lambda x, y: np.copyto(y, y + 2 * x),
}
"""What writers do to arrays."""


def expected(x: np.ndarray, y: np.ndarray, _z: np.ndarray, how: str) -> tuple[np.ndarray, ...]:
    first, x, y = x.copy(), x.copy(), y.copy()
    MEANINGS[how](x, y)
    return (*(array for array, is_written in zip((x, y), written(how), strict=True) if is_written), 2 * x - first)


@conformance(
    [
        Case(
            f"{how}-{width}",
            between,
            lambda rng, width=width, how=how: [*arrays(rng, width, how), Output((5, width), ts.f32)],
            lambda x, y, z, how=how: expected(x, y, z, how),
            constexprs={"how": how},
            backends=(*BACKENDS, "ptx-sm_90a"),
        )
        for how in MEANINGS
        for width in (24, 37)
    ]
)
def test_second_load_sees_what_was_written(case, backend):
    check(case, backend)


def sum_then_row(x: ts.Tensor["M", "N", ts.bf16], y: ts.Tensor["M", "N", ts.bf16]):
    for i in ts.tile.grid((M, 1)):
        total = ts.tile.sum(x[i, :].to(ts.f32))
        y[i, :] = x[i, :].to(ts.f32) - total


def named_row(x: ts.Tensor["M", "N", ts.bf16], y: ts.Tensor["M", "N", ts.bf16]):
    for i in ts.tile.grid((M, 1)):
        row = x[i, :].to(ts.f32)
        y[i, :] = row - ts.tile.sum(row)


@pytest.mark.parametrize("width", [1000, 8192, 16384, 32768, 50257])
@pytest.mark.parametrize("target", ["sm_90a", "x86-64-v4"])
def test_code_is_that_of_a_row_with_a_name(width, target):
    level = "ptx" if target == "sm_90a" else "asm"
    texts = [
        ts.compile(ts.kernel(kernel), target=target, dims={"N": width}, dump=[level]).dumps[level]
        for kernel in (sum_then_row, named_row)
    ]
    assert [line for line in texts[0].splitlines() if "sum_then_row" not in line][8:] == [
        line for line in texts[1].replace("named_row", "sum_then_row").splitlines() if "sum_then_row" not in line
    ][8:]
