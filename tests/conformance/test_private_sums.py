"""Additions of many programs to few elements: in shared memory first, where nothing else touches the tensor."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

ON = ("scheduled-sm_90a", "threads-sm_80", "ptx-sm_80", "ptx-sm_90a", "cuda")


def counted(x: np.ndarray, weights: np.ndarray, into: np.ndarray) -> np.ndarray:
    """Return what is there with the weights of places inside of it added."""
    found = into.copy()
    inside = (x >= 0) & (x < into.size)
    np.add.at(found, x[inside], weights[inside].astype(into.dtype))
    return found


def plain(block: int, dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A histogram."""

    def kernel(x: ts.Tensor["N", ts.i32], y: ts.Tensor["K", dt]):
        for i in ts.tile.grid((N, block)):
            at = i + ts.tile.arange(block)
            ts.tile.atomic_add(y[ts.tile.where(at < N, x[i : i + block], -1)], 1)

    def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return counted(x, np.ones(x.size, int), y)

    return kernel, reference


def weighted(block: int, dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two additions, one of them under a condition, beside a tensor that is stored."""

    def kernel(x: ts.Tensor["N", ts.i32], w: ts.Tensor["N", dt], y: ts.Tensor["K", dt], z: ts.Tensor["N", dt]):
        for i in ts.tile.grid((N, block)):
            place, weight = x[i : i + block], w[i : i + block]
            z[i : i + block] = weight + weight
            if i % 3 == 1:
                ts.tile.atomic_add(y[place // 2], weight)
            if weight > 2:
                ts.tile.atomic_add(y[place], weight * 3)

    def reference(x: np.ndarray, w: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        third = np.arange(x.size) // block * block % 3 == 1
        found = counted(x[third] // 2, w[third], y)
        return counted(x[w > 2], w[w > 2] * 3, found), w + w

    return kernel, reference


def asked(block: int, dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The tensor is read in the same launch: additions stay where they are."""

    def kernel(x: ts.Tensor["N", ts.i32], y: ts.Tensor["K", dt], z: ts.Tensor["N", ts.i32]):
        for i in ts.tile.grid((N, block)):
            ts.tile.atomic_add(y[x[i : i + block] * 0], ts.tile.where(i + ts.tile.arange(block) < N, 1, 0).to(dt))
            z[i : i + block] = (y[x[i : i + block] * 0 + 1] * 2).to(ts.i32)

    def reference(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = y.copy()
        found[0] += x.size
        return found, np.full(x.size, 2 * y[1], np.int32)

    return kernel, reference


def cases() -> list[Case]:
    found: list[Case] = []
    works = ((40000, 64, 5, "i32"), (9000, 100, 3, "u32"), (20000, 1024, 9, "f32"), (2048, 256, 1, "u32"))
    for n, block, k, name in (*works, (2047, 256, 1, "i32"), (9000, 128, 4100, "i32"), (0, 64, 4, "i32")):
        dt = dtype(name)

        def of_plain(rng: np.random.Generator, n: int = n, k: int = k, dt: Any = dt) -> list[Any]:
            return [rng.integers(-2, k + 3, n).astype(np.int32), Updated(rng.integers(0, 9, k).astype(dt.numpy()))]

        def of_weighted(rng: np.random.Generator, n: int = n, k: int = k, dt: Any = dt) -> list[Any]:
            weights = rng.integers(0, 5, n).astype(dt.numpy())
            x, y = of_plain(rng, n, k, dt)
            return [x, weights, y, Output((n,), dt)]

        def of_asked(rng: np.random.Generator, n: int = n, k: int = k, dt: Any = dt) -> list[Any]:
            x, y = of_plain(rng, n, max(k, 2), dt)
            return [x, y, Output((n,), dtype("i32"))]

        words = f"{n}-{block}-{k}-{name}"
        for what, make, given in (
            ("plain", plain, of_plain),
            ("weighted", weighted, of_weighted),
            ("asked", asked, of_asked),
        ):
            kernel, reference = make(block, dt)
            found.append(Case(f"{what}-{words}", kernel, given, reference, backends=ON))
    return found


@conformance(cases())
def test_sums_of_many_programs(case: Case, backend: str) -> None:
    check(case, backend)
