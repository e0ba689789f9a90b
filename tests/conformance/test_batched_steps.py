"""Loops over single rows that only add up, of which a launch does many steps at once where there are few programs."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.dtypes import DType
from tests.conformance.harness import Case, Output, check, conformance, dtype

ON = ("scheduled-sm_80", "scheduled-sm_90a", "threads-sm_80", "ptx-sm_90a", "cuda")
SHAPES = ((4100, 2, 2), (4097, 1, 1), (2047, 3, 7), (700, 2, 16), (90, 3, 128), (5, 2, 4), (1100, 65, 1), (1, 1, 9))


def channels(dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two statistics of a channel, of which one begins with something."""

    def kernel(x: ts.Tensor["A", "B", "C", dt], y: ts.Tensor["B", dt], z: ts.Tensor["B", dt]):
        for b in ts.tile.grid((B, 1)):
            total, most = ts.tile.full((1,), 5, dt), ts.tile.full((1,), 0, dt)
            for a in ts.tile.range(A):
                row = x[a, b, :]
                total = total + ts.tile.sum(row * 2, None)
                most = ts.tile.maximum(most, ts.tile.max(row + 1, None))
            y[b : b + 1] = total
            z[b : b + 1] = most

    def reference(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return 5 + 2 * x.sum((0, 2), dtype=x.dtype), np.maximum(0, (x + 1).max((0, 2)))

    return kernel, reference


def rows(dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The sums are tiles, of rows of another dimension than the first, under a condition."""

    def kernel(x: ts.Tensor["B", "A", "C", dt], w: ts.Tensor["A", dt], y: ts.Tensor["B", "C", dt]):
        for b in ts.tile.grid((B, 1)):
            total = ts.tile.zeros((C,), dt)
            for a in ts.tile.range(A):
                row = ts.tile.where(a % 3 == 1, x[b, a, :], 1)
                total = total - row * w[a]
            y[b, :] = total

    def reference(x: np.ndarray, w: np.ndarray, y: np.ndarray) -> np.ndarray:
        chosen = np.where((np.arange(x.shape[1]) % 3 == 1)[None, :, None], x, 1)
        return -(chosen * w[None, :, None]).sum(1, dtype=x.dtype)

    return kernel, reference


def elsewhere(dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Two dimensions of programs; each row lies where another tensor says."""

    def kernel(
        x: ts.Tensor["A", "B", "C", dt], p: ts.Tensor["A", ts.i32], y: ts.Tensor["B", "C", dt], z: ts.Tensor["B", dt]
    ):
        for b, c in ts.tile.grid((B, 1), (C, 1)):
            least = ts.tile.full((1,), 100, dt)
            for a in ts.tile.range(A):
                least = ts.tile.minimum(least, x[p[a], b, c])
            y[b, c : c + 1] = least
        for b in ts.tile.grid((B, 1)):
            z[b] = y[b, 0]

    def reference(x: np.ndarray, p: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.minimum(100, x[p].min(0))
        return found, found[:, 0]

    return kernel, reference


def bits(fn: str, dt: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Operations on the bits of integers, and on conditions."""

    def kernel(x: ts.Tensor["A", "B", dt], y: ts.Tensor["B", dt], z: ts.Tensor["B", ts.bool_]):
        for b in ts.tile.grid((B, 1)):
            found = ts.tile.full((1,), 93, dt)
            for a in ts.tile.range(A):
                if fn == "and":
                    found = found & x[a, b : b + 1]
                elif fn == "or":
                    found = found | x[a, b : b + 1]
                else:
                    found = found ^ x[a, b : b + 1]
            y[b : b + 1] = found
        for b in ts.tile.grid((B, 1)):
            every = ts.tile.full((1,), True, ts.bool_)
            for a in ts.tile.range(A):
                every = every & (x[a, b : b + 1] != 3)
            z[b : b + 1] = every

    def reference(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        combine = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[fn]
        return combine(combine.reduce(x, 0), np.array(93, x.dtype)), (x != 3).all(0)

    return kernel, reference


def extremes(dt: DType) -> Any:
    """Return a kernel of extremes of floats that have no constants of their own, and some of them no infinity."""

    def kernel(x: ts.Tensor["A", "B", dt], y: ts.Tensor["B", dt], z: ts.Tensor["B", dt]):
        for b in ts.tile.grid((B, 1)):
            most, least = ts.tile.full((1,), -4.0, dt), ts.tile.full((1,), 4.0, dt)
            for a in ts.tile.range(A):
                most = ts.tile.maximum(most, x[a, b : b + 1])
                least = ts.tile.minimum(least, x[a, b : b + 1])
            y[b : b + 1] = most
            z[b : b + 1] = least

    return kernel


def of_extremes(dt: DType) -> Case:
    def given(rng: np.random.Generator) -> list[Any]:
        return [rng.integers(-3, 4, (2100, 2)).astype(dt.numpy()), Output((2,), dt), Output((2,), dt)]

    def reference(x: np.ndarray, *_results: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wide = x.astype(np.float32)
        return wide.max(0).astype(x.dtype), wide.min(0).astype(x.dtype)

    return Case(f"extremes-{dt.name}", extremes(dt), given, reference, backends=ON)


def cases() -> list[Case]:
    found: list[Case] = []
    for number, (a, b, c) in enumerate(SHAPES * 2):
        dt = dtype(("i32", "f32", "u32", "f64", "i64")[number % 5])
        words = f"{dt.name}-{a}x{b}x{c}"

        def draw(rng: np.random.Generator, *shape: int, dt: Any = dt) -> np.ndarray:
            return rng.integers(0, 7, shape).astype(dt.numpy())

        def of_channels(rng: np.random.Generator, a: int = a, b: int = b, c: int = c, dt: Any = dt) -> list[Any]:
            return [draw(rng, a, b, c, dt=dt), Output((b,), dt), Output((b,), dt)]

        def of_rows(rng: np.random.Generator, a: int = a, b: int = b, c: int = c, dt: Any = dt) -> list[Any]:
            return [draw(rng, b, a, c, dt=dt), draw(rng, a, dt=dt), Output((b, c), dt)]

        def of_places(rng: np.random.Generator, a: int = a, b: int = b, c: int = c, dt: Any = dt) -> list[Any]:
            places = rng.integers(0, a, a).astype(np.int32)
            return [draw(rng, a, b, c, dt=dt), places, Output((b, c), dt), Output((b,), dt)]

        for name, make, given in (
            ("channels", channels, of_channels),
            ("rows", rows, of_rows),
            ("elsewhere", elsewhere, of_places),
        ):
            kernel, reference = make(dt)
            found.append(Case(f"{name}-{words}", kernel, given, reference, backends=ON))
    for fn, name in (("and", "i32"), ("and", "u16"), ("or", "i64"), ("xor", "i16")):
        dt = dtype(name)
        kernel, reference = bits(fn, dt)

        def of_bits(rng: np.random.Generator, fn: str = fn, dt: Any = dt) -> list[Any]:
            x = rng.integers(0, 1 << 20, (2100, 2)) | 68 if fn == "and" else rng.integers(0, 3, (2100, 2))
            x[1900, 0] = 3 if fn == "or" else x[1900, 0]
            return [x.astype(dt.numpy()), Output((2,), dt), Output((2,), dtype("bool"))]

        found.append(Case(f"{fn}-{name}", kernel, of_bits, reference, backends=ON[1:4]))
    return [*found, *map(of_extremes, (ts.fp8_e4m3, ts.fp8_e5m2, ts.fp6_e2m3, ts.fp6_e3m2))]


@conformance(cases())
def test_steps_are_done_together(case: Case, backend: str) -> None:
    check(case, backend)
