"""Loops that carry a tile and read it elsewhere: at places that are computed from it, backwards, exchanged, rolled.

The next tile takes the memory of the one that it is read from, which is longer than a vector.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.harness import Case, Updated, check, conformance, dtype

T = ts.tile


def _exchanged(x: np.ndarray, bits: int) -> np.ndarray:
    places = np.arange(x.shape[1]) ^ bits
    return x[:, np.where(places < x.shape[1], places, np.arange(x.shape[1]))]


@ts.function
def in_order(v: Any) -> Any:
    return T.take_along_axis(v, T.argsort(v, -1), -1)


@ts.function
def turned(v: Any) -> Any:
    return T.flip(v, -1) + 1


@ts.function
def exchanged(v: Any) -> Any:
    return T.exchange(v, 5, -1) - v


@ts.function
def rolled(v: Any) -> Any:
    return T.roll(v, 3, -1) + v


@ts.function
def ranked(v: Any) -> Any:
    return T.take_along_axis(v, T.abs(v) % v.shape[1], -1) + T.flip(v, -1)


def _ranked(x: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, (np.abs(x) % x.dtype.type(x.shape[1])).astype(np.int64), 1) + x[:, ::-1]


STEPS: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "sorted": (in_order, lambda x: np.sort(x, 1)),
    "turned": (turned, lambda x: x[:, ::-1] + 1),
    "exchanged": (exchanged, lambda x: _exchanged(x, 5) - x),
    "rolled": (rolled, lambda x: np.roll(x, 3, 1) + x),
    "ranked": (ranked, _ranked),
}


def case_of(name: str, of: str, size: int, trips: int) -> Case:
    step, reference = STEPS[name]
    dt = dtype(of)

    def kernel(x: ts.Tensor["M", size, dt], n: int):
        for i in T.grid((M, 2)):
            v = x[i : i + 2, :]
            for _ in T.range(n):
                v = step(v)
            x[i : i + 2, :] = v

    def expected(x: np.ndarray, n: int) -> np.ndarray:
        for _ in range(n):
            x = reference(x)
        return x

    def arguments(rng: np.random.Generator) -> list[Any]:
        return [Updated(rng.integers(-20, 21, (5, size)).astype(dt.numpy())), trips]

    words = f"{name}-{of}-{size}-{trips}"
    return Case(words, kernel, arguments, expected, backends=("cpu", "cpu-x86-64-v3", "ptx-sm_80", "cuda"))


@conformance(
    [
        case_of(name, of, size, trips)
        for name in STEPS
        for of, size, trips in (("i64", 17, 1), ("i32", 40, 3), ("i64", 33, 2), ("i16", 70, 2))
    ]
)
def test_a_tile_is_read_before_the_next_takes_its_place(case: Case, backend: str) -> None:
    check(case, backend)
