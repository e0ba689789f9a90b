"""Tiles that reach past the end of what they are stored to: in rows, in columns, in both, or as a whole.

A CPU goes only as far as the tensor: whole vectors first, then the one that the end cuts. What such a tile is computed
from has ends of its own, begins elsewhere, lies in another order, or is used again as a whole.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.data import box_of
from tests.conformance.harness import Case, Output, Updated, check, conformance, dtype

ON = ("cpu", "cpu-x86-64", "cpu-x86-64-v3", "cuda")
SIZES = ((1, 1), (3, 89), (16, 96), (17, 64), (9, 129), (8, 128), (33, 31), (2, 200), (20, 15))
BLOCKS = ((8, 128), (16, 64), (1, 256), (4, 48), (5, 80))


def biased(dt: Any, block: tuple[int, int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    rows, columns = block

    def kernel(x: ts.Tensor["M", "N", dt], b: ts.Tensor["N", dt], c: ts.Tensor["M", dt], y: ts.Tensor["M", "N", dt]):
        for i, j in ts.tile.grid((M, rows), (N, columns)):
            y[i : i + rows, j : j + columns] = (
                x[i : i + rows, j : j + columns] + b[j : j + columns][None, :] + c[i : i + rows][:, None]
            )

    def reference(x: np.ndarray, b: np.ndarray, c: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + b[None, :] + c[:, None]

    return kernel, reference


def elsewhere(dt: Any, block: tuple[int, int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What is read begins before and after, and ends where other tensors do."""
    rows, columns = block

    def kernel(x: ts.Tensor["P", "Q", dt], b: ts.Tensor["S", dt], c: ts.Tensor["M", dt], y: ts.Tensor["M", "N", dt]):
        for i, j in ts.tile.grid((M, rows), (N, columns)):
            up, right = i - 2, j + 3
            before = x[up : up + rows, right : right + columns]
            here = x[i : i + rows, j : j + columns]
            y[i : i + rows, j : j + columns] = before - here + b[j : j + columns][None, :] + c[i : i + rows][:, None]

    def reference(x: np.ndarray, b: np.ndarray, c: np.ndarray, y: np.ndarray) -> np.ndarray:
        m, n = y.shape
        before, here = box_of(x, range(-2, m - 2), range(3, n + 3)), box_of(x, range(m), range(n))
        return before - here + box_of(b[None], range(1), range(n)) + c[:, None]

    return kernel, reference


def counted(dt: Any, block: tuple[int, int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Positions, a mask, and a result that is stored twice, one of them further on."""
    rows, columns = block

    def kernel(x: ts.Tensor["M", "N", dt], y: ts.Tensor["M", "N", dt], z: ts.Tensor["M", "N", dt]):
        for i, j in ts.tile.grid((M, rows), (N, columns)):
            at = (i + ts.tile.arange(rows))[:, None] * 3 + (j + ts.tile.arange(columns))[None, :]
            found = x[i : i + rows, j : j + columns] + (at % 5).to(dt)
            if at % 3 != 1:
                y[i : i + rows, j : j + columns] = found
            down, right = i - 1, j + 2
            z[down : down + rows, right : right + columns] = found + found

    def reference(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        m, n = x.shape
        whole = (-(-m // rows) * rows, -(-n // columns) * columns)
        at = np.arange(whole[0])[:, None] * 3 + np.arange(whole[1])[None, :]
        found = box_of(x, range(whole[0]), range(whole[1])) + (at % 5).astype(x.dtype)
        y, z = y.copy(), z.copy()
        y[at[:m, :n] % 3 != 1] = found[:m, :n][at[:m, :n] % 3 != 1]
        for i in range(m):
            for j in range(n):
                if i + 1 < whole[0] and j - 2 >= 0:
                    z[i, j] = 2 * found[i + 1, j - 2]
        return y, z

    return kernel, reference


def turned(dt: Any, block: tuple[int, int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Read across rows, picked by row, and updated in place."""
    rows, columns = block

    def kernel(
        x: ts.Tensor["N", "M", dt], p: ts.Tensor["M", ts.i32], t: ts.Tensor["R", "N", dt], y: ts.Tensor["M", "N", dt]
    ):
        for i, j in ts.tile.grid((M, rows), (N, columns)):
            places = p[i : i + rows]
            picked = t[places[:, None], (j + ts.tile.arange(columns))[None, :]]
            y[i : i + rows, j : j + columns] = (
                y[i : i + rows, j : j + columns] + x[j : j + columns, i : i + rows].T - picked
            )

    def reference(x: np.ndarray, p: np.ndarray, t: np.ndarray, y: np.ndarray) -> np.ndarray:
        inside = (p >= 0) & (p < t.shape[0])
        return y + x.T - np.where(inside[:, None], t[np.where(inside, p, 0)], 0).astype(y.dtype)

    return kernel, reference


def deep(dt: Any, block: tuple[int, int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Three dimensions, of which the last is short, and a loop that goes past two ends."""
    rows, columns = block

    def kernel(x: ts.Tensor["A", "M", "N", dt], y: ts.Tensor["A", "M", "N", dt], z: ts.Tensor["M", "A", "N", dt]):
        for i, j in ts.tile.grid((M, rows), (N, columns)):
            for a in ts.tile.range(0, A, 2):
                found = x[a : a + 2, i : i + rows, j : j + columns]
                y[a : a + 2, i : i + rows, j : j + columns] = found * 2
                z[i : i + rows, a : a + 2, j : j + columns] = ts.tile.transpose(found, (1, 0, 2))

    def reference(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x * 2, x.transpose(1, 0, 2)

    return kernel, reference


def multiplied(dt: Any, block: tuple[int, int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Operands begin before and after what their tensors hold, and go on past their own ends."""
    rows, columns = block
    terms, wide = (columns % 13 + 3, dtype("f32"))

    def kernel(x: ts.Tensor["M", "K", dt], z: ts.Tensor["K", "N", dt], y: ts.Tensor["M", "N", wide]):
        for i, j in ts.tile.grid((M, rows), (N, columns)):
            total = ts.tile.zeros((rows, columns), wide)
            for k in ts.tile.range(0, K, terms):
                up, left, behind = 0 - i, k - 2, j - 3
                total = ts.tile.mma(x[i : i + rows, k : k + terms], z[k : k + terms, behind : behind + columns], total)
                total = ts.tile.mma(x[up : up + rows, left : left + terms], z[k : k + terms, j : j + columns], total)
            y[i : i + rows, j : j + columns] = total

    def reference(x: np.ndarray, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        (m, depth), n = x.shape, z.shape[1]
        found = np.zeros((-(-m // rows) * rows, -(-n // columns) * columns))
        for i in range(0, m, rows):
            for j in range(0, n, columns):
                part = found[i : i + rows, j : j + columns]
                for k in range(0, depth, terms):
                    own, to = range(k, k + terms), range(j, j + columns)
                    behind = range(j - 3, j - 3 + columns)
                    part += box_of(x, range(i, i + rows), own).astype(float) @ box_of(z, own, behind).astype(float)
                    before = box_of(x, range(-i, rows - i), range(k - 2, k - 2 + terms)).astype(float)
                    part += before @ box_of(z, own, to).astype(float)
        return found[:m, :n].astype(np.float32)

    return kernel, reference


def case_of(name: str, make: Callable[..., Any], given: Callable[..., Sequence[Any]], number: int) -> Case:
    """Return a case of one of the kernels: sizes, block and dtype by its number."""
    m, n = SIZES[number % len(SIZES)]
    block = BLOCKS[number * 3 % len(BLOCKS)]
    dt = dtype(("f32", "f16", "bf16", "i8", "i64", "f64", "u16")[number % 7])
    kernel, reference = make(dt, block)

    def arrays(rng: np.random.Generator) -> Sequence[Any]:
        return given(lambda *shape: rng.integers(0, 7, shape).astype(dt.numpy()), rng, dt, m, n)

    words = f"{name}-{dt.name}-{m}x{n}-{block[0]}x{block[1]}"
    return Case(words, kernel, arrays, reference, backends=ON)


def odd(n: int) -> int:
    return n + n % 2 * 2 - 1 or 1


PRODUCTS = "multiplied", multiplied, lambda new, rng, dt, m, n: [new(m, 37), new(37, n), Output((m, n), dtype("f32"))]

KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Sequence[Any]]]] = {
    "biased": (biased, lambda new, rng, dt, m, n: [new(m, n), new(n), new(m), Output((m, n), dt)]),
    "elsewhere": (elsewhere, lambda new, rng, dt, m, n: [new(m + 1, odd(n)), new(odd(n)), new(m), Output((m, n), dt)]),
    "counted": (counted, lambda new, rng, dt, m, n: [new(m, n), Updated(new(m, n)), Updated(new(m, n))]),
    "turned": (
        turned,
        lambda new, rng, dt, m, n: [
            new(n, m),
            rng.integers(-1, 6, m).astype(np.int32),
            new(5, n),
            Updated(new(m, n + 3)[:, :n]),
        ],
    ),
    "deep": (deep, lambda new, rng, dt, m, n: [new(5, m, n), Output((5, m, n), dt), Output((m, 5, n), dt)]),
}


@conformance(
    [case_of(name, *KERNELS[name], number) for name in KERNELS for number in range(0, 45, 7)]
    + [case_of(*PRODUCTS, number) for number in (0, 1, 2, 7, 8, 9, 14, 15, 16, 22, 23, 29)]
)
def test_tiles_end_where_tensors_do(case: Case, backend: str) -> None:
    check(case, backend)
