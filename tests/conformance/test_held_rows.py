"""Long rows that stay in shared memory for several passes: of any width, aligned or not, with gaps between them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.numerics.dtypes import DType
from tests.conformance.harness import Case, Updated, check, conformance, dtype
from tests.conformance.test_rows_anywhere import ALIKE, BACKENDS, M, rows

CHUNK = 8192
"""Elements of a chunk of such rows (`chunk-tiles`)."""
LIE = (1, 3, 6), (0, 5, 2)
"""Elements before the first rows of tensors, and between their rows."""


def centred(dt: DType) -> Any:
    """Return a kernel of two passes."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :]
            y[i, :] = row - ts.tile.min(row)

    return kernel


def weighted(dt: DType) -> Any:
    """Return a kernel of four passes, of two tensors that may lie otherwise, with a vector, which tells places."""
    matrix, vector = ts.Tensor["m", "n", dt], ts.Tensor["n", dt]

    def kernel(x: matrix, y: matrix, z: matrix, w: vector):
        for i in ts.tile.grid((m, 1)):
            row, other = x[i, :], z[i, :]
            apart = row - ts.tile.min(other)
            most = ts.tile.max(apart)
            first = ts.tile.min(ts.tile.where(apart == most, ts.tile.arange(n), n))
            y[i, :] = ts.tile.where(ts.tile.arange(n) == first, most, row + other + w[:])

    return kernel


def in_place(dt: DType) -> Any:
    """Return a kernel that stores rows over themselves."""

    def kernel(x: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :]
            x[i, :] = row - ts.tile.min(row)

    return kernel


def converted(dt: DType) -> Any:
    """Return a kernel that stores rows of wider elements, first as they are."""

    def kernel(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", ts.f32], z: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :]
            z[i, :] = row + row
            y[i, :] = (row - ts.tile.min(row)).to(ts.f32)

    return kernel


def _weighted(x: np.ndarray, _y: np.ndarray, z: np.ndarray, w: np.ndarray) -> np.ndarray:
    apart, result = x - z.min(1, keepdims=True), x + z + w
    result[np.arange(M), np.argmax(apart, 1)] = apart.max(1)
    return result


def _centred(x: np.ndarray, *_results: np.ndarray) -> np.ndarray:
    return x - x.min(1, keepdims=True)


MEANINGS: dict[Callable[[DType], Any], Callable[..., Any]] = {
    centred: _centred,
    weighted: _weighted,
    in_place: _centred,
    converted: lambda x, _y, _z: (_centred(x), x + x),
}


def held(
    make: Any, name: str, n: int, before: tuple[int, ...], pad: tuple[int, ...], knobs: dict[str, int] | None = None
) -> Case:
    """Return a case of rows that shared memory holds, if they fit once.

    Args:
        make: returns the kernel.
        name: the dtype.
        n: elements of a row.
        before: elements before the first row of each tensor.
        pad: elements between the rows of each tensor.
        knobs: others than those that hold rows.
    """
    dt = dtype(name)

    def arguments(rng: np.random.Generator) -> list[Any]:
        count = {weighted: 3, converted: 3, in_place: 1}.get(make, 2)
        found: list[Any] = [rows(rng, n, dt, before[place], pad[place]) for place in range(count)]
        if make is converted:
            found[1], found[2] = Updated(rows(rng, n, ts.f32, before[1], pad[1])), Updated(found[2])
            return found
        written = min(count - 1, 1)
        found[written] = Updated(found[written])
        return [*found, rows(rng, n, dt, 0, 0)[0]] if make is weighted else found

    def meaning(*given: np.ndarray) -> Any:
        result = MEANINGS[make](*(array.astype(np.int64) for array in given))
        if make is converted:
            return result[0].astype(np.float32), result[1].astype(dt.numpy())
        return result.astype(dt.numpy())

    knobs = knobs or {"hold_rows": 1}
    words = "-".join(map(str, (make.__name__, name, n, *before, *pad, *knobs.values())))
    return Case(words, make(dt), arguments, meaning, knobs={**knobs, "batch": 1}, backends=BACKENDS)


@conformance(
    [
        *(
            held(make, name, n, *ALIKE)
            for make, names in (
                (centred, ("bf16", "f32", "u8")),
                (weighted, ("bf16", "f32")),
                (in_place, ("f16", "i32")),
                (converted, ("bf16",)),
            )
            for name in names
            for n in (CHUNK + 16, 2 * CHUNK, 20000, CHUNK + 4096)
        ),
        *(
            held(make, name, n, *lie)
            for make, name in ((centred, "bf16"), (weighted, "bf16"), (centred, "f32"), (weighted, "u8"))
            for n in (CHUNK + 9, CHUNK + 33, 2 * CHUNK - 1, 20001)
            for lie in (ALIKE, LIE)
        ),
        *(held(in_place, name, 12345, *LIE) for name in ("bf16", "f32")),
    ]
)
def test_rows(case: Case, backend: str):
    check(case, backend)


@pytest.mark.parametrize(
    ("make", "name", "width", "is_held"),
    [
        (centred, "bf16", 20000, True),
        (centred, "bf16", 20001, True),
        (weighted, "f32", 12288, True),
        (weighted, "f32", 17001, True),
        (in_place, "bf16", 20000, True),
        (in_place, "bf16", 20001, False),  # chunks that come twice would be computed of what was stored
        (centred, "bf16", 60000, False),  # two programs have no room
        (centred, "bf16", 8000, False),
        (centred, "bf16", 13001, False),
    ],
)
def test_which_rows_are_held(make: Any, name: str, width: int, is_held: bool):
    made = ts.compile(ts.kernel(make(dtype(name))), target="sm_90a", dims={"n": width}, dump=["tirh"])
    text = made.dumps["tirh"]
    assert isinstance(text, str)
    assert (f"rows of {width} elements stay in shared memory" in text) == is_held
    for measured in made.reflection["kernels"].values():
        assert measured["spill_store_bytes"] == 0
