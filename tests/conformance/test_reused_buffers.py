"""Sums and loops inside regions that start with a tile computed from one outside, which iterations read again.

`seen` is computed from a tile that a reduction left in a buffer. What starts the sum may not take that buffer: the next
iteration computes `seen` from it, and so does what follows the region.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

T = ts.tile


@ts.function
def multiplied(start: Any) -> Any:
    ones = T.full(start.shape, 1, ts.i8)
    return T.mma(ones, ones, start)


@ts.function
def carried(start: Any) -> Any:
    for _ in T.range(2):
        start = start * 3 + 1
    return start


@ts.function
def carried_by_while(start: Any) -> Any:
    k = T.cast(0, ts.i32)
    while k < 2:
        start = start * 3 + 1
        k += 1
    return start


def twice(x: np.ndarray) -> np.ndarray:
    return (x * 3 + 1) * 3 + 1


STEPS: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "mma": (multiplied, lambda x: x + len(x)),
    "for": (carried, twice),
    "while": (carried_by_while, twice),
}


def in_a_branch(size: int, step: Any) -> Any:
    def kernel(x: ts.Tensor[size, size, ts.i32], y: ts.Tensor[size, size, ts.i32], n: int):
        for _ in T.grid((1, 1)):
            seen = ~x[:, :]
            if T.max(seen) != 12345:
                x[:, :] = step(T.abs(seen))
            y[:, :] = seen

    return kernel


def in_a_loop(size: int, step: Any) -> Any:
    def kernel(x: ts.Tensor[size, size, ts.i32], y: ts.Tensor[size, size, ts.i32], n: int):
        for _ in T.grid((1, 1)):
            seen = ~x[:, :]
            if T.max(seen) == 12345:
                return
            for _ in T.range(n):
                x[:, :] = step(T.abs(seen))
            y[:, :] = seen

    return kernel


def in_a_branch_of_a_while(size: int, step: Any) -> Any:
    def kernel(x: ts.Tensor[size, size, ts.i32], y: ts.Tensor[size, size, ts.i32], n: int):
        for _ in T.grid((1, 1)):
            seen = ~x[:, :]
            if T.max(seen) == 12345:
                return
            k = T.cast(0, ts.i64)
            while k < n:
                if k % 2 == 0:
                    x[:, :] = step(T.abs(seen))
                k += 1
            y[:, :] = seen

    return kernel


REGIONS = {"branch": in_a_branch, "loop": in_a_loop, "branch-of-while": in_a_branch_of_a_while}


def case_of(region: str, name: str, size: int) -> Case:
    step, reference = STEPS[name]

    def expected(x: np.ndarray, y: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        return reference(np.abs(~x)), ~x

    def arguments(rng: np.random.Generator) -> list[Any]:
        start = rng.integers(-20, 21, (size, size)).astype(np.int32)
        return [Updated(start), Output((size, size), dtype("i32")), 3]

    words = f"{region}-{name}-{size}"
    return Case(words, REGIONS[region](size, step), arguments, expected, backends=("cpu", "cpu-x86-64-v3", "ptx-sm_80"))


@conformance([case_of(region, name, size) for region in REGIONS for name in STEPS for size in (2, 8, 17)])
def test_tiles_from_outside_stay(case: Case, backend: str) -> None:
    check(case, backend)
