"""Programs that are small enough to run several as one: everything that may differ between them, and counts that do not
divide."""

from collections.abc import Callable
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT
from tests.conformance.harness import Case, Output, Updated, check, conformance

M, N = 37, 12


@ts.function
def larger(a: Any, i: Any, b: Any, j: Any) -> Any:
    """The larger of two numbers with its place."""
    keep = (a > b) | ((a == b) & (i < j))
    return ts.tile.where(keep, a, b), ts.tile.where(keep, i, j)


def _rows(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that stores a function of each row."""

    def kernel(x: ts.Tensor["m", N, ts.i32], y: ts.Tensor["m", N, ts.i32]):
        for i in ts.tile.grid((m, 1)):
            y[i, :] = body(x, i)

    return kernel


@ts.function
def sums(x: Any, i: Any) -> Any:
    return x[i, :] - ts.tile.sum(x[i, :], 0)


@ts.function
def scans(x: Any, i: Any) -> Any:
    return ts.tile.cumsum(x[i, :], 0) + ts.tile.cumsum(x[i, :], 0, reverse=True)


@ts.function
def kept(x: Any, i: Any) -> Any:
    return ts.tile.reshape(ts.tile.reshape(x[i : i + 1, :], (3, 4)).T, (12,))


@ts.function
def placed(x: Any, i: Any) -> Any:
    return x[i, :] * 2 + i + ts.tile.arange(12)


@ts.function
def shared(x: Any, i: Any) -> Any:
    return x[i, :] + x[3, :] + x[0, 5]


@ts.function
def near(x: Any, i: Any) -> Any:
    return x[i + 1, :] - x[i - 2, :]


@ts.function
def parts(x: Any, i: Any) -> Any:
    row = x[i, :]
    return ts.tile.flip(row, 0) + row[4] + ts.tile.roll(row, 5, 0)


@ts.function
def best(x: Any, i: Any) -> Any:
    value, place = ts.tile.reduce((x[i, :], ts.tile.arange(12)), 0, larger)
    return x[i, :] * 100 + value * 10 + place


@ts.function
def both(a: Any, b: Any) -> Any:
    """A sum whose combiner reads a constant, which may be made outside of it."""
    return (a ^ b) + 2 * (a & b)


@ts.function
def combined(x: Any, i: Any) -> Any:
    return x[i, :] + ts.tile.reduce(x[i, :], 0, both) - 2 * ts.tile.reduce(x[2, :] * 2, 0, both)


@ts.function
def ordered(x: Any, i: Any) -> Any:
    return ts.tile.sort(x[i, :], 0)


@ts.function
def looped(x: Any, i: Any) -> Any:
    total, row = x[i, :] * 0, x[i, :]
    for k in ts.tile.range(0, 12, 1):
        total = total + row * x[i, k] + ts.tile.cast(k, ts.i32)
    return total


@ts.function
def branched(x: Any, i: Any) -> Any:
    row = x[i, :]
    if x[0, 0] > -100:
        row = row * 3
    else:
        row = row + x[i, 1]
    return row


@ts.function
def gathered(x: Any, i: Any) -> Any:
    return x[x[i, :] & 31, ts.tile.arange(12)] + x[i + x[0, 0] * 0, :]


def _meaning(x: np.ndarray) -> dict[str, np.ndarray]:
    row, place = np.arange(M)[:, None], np.arange(N)
    padded = np.zeros((M + 4, N), x.dtype)
    padded[2 : M + 2] = x
    largest = x.max(1, keepdims=True)
    return {
        "sums": x - x.sum(1, keepdims=True),
        "scans": x.cumsum(1) + x[:, ::-1].cumsum(1)[:, ::-1],
        "kept": x.reshape(M, 3, 4).transpose(0, 2, 1).reshape(M, N),
        "placed": x * 2 + row + place,
        "shared": x + x[3] + x[0, 5],
        "near": padded[3 : M + 3] - padded[:M],
        "parts": x[:, ::-1] + x[:, 4:5] + np.roll(x, 5, 1),
        "best": x * 100 + largest * 10 + x.argmax(1)[:, None],
        "combined": x + x.sum(1, keepdims=True) - 4 * x[2].sum(),
        "ordered": np.sort(x, 1),
        "looped": x * x.sum(1, keepdims=True) + place.sum(),
        "branched": x * 3,
        "gathered": x[x & 31, place] + x,
    }


BODIES = (sums, scans, kept, placed, shared, near, parts, best, combined, ordered, looped, branched, gathered)


def _name(body: Any) -> str:
    return str(body.__name__)


@conformance(
    [
        Case(
            f"{_name(body)}{f'-{batch}' if batch else ''}",
            _rows(body),
            lambda rng: [rng.integers(-9, 10, (M, N)).astype(np.int32), Output((M, N), ts.i32)],
            lambda x, _y, body=body: _meaning(x)[_name(body)].astype(np.int32),
            EXACT,
            knobs={"batch": batch} if batch else {},
        )
        for body in BODIES
        for batch in ((None, 4) if body in (sums, placed, looped) else (None,))
    ]
)
def test_rows(case, backend):
    check(case, backend)


def _numbers(x: ts.Tensor["m", ts.i32], y: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        y[i] = x[i] * 3 + i


def _blocks(x: ts.Tensor["m", ts.i32], y: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((m, 16)):
        y[i : i + 16] = x[i : i + 16] + ts.tile.sum(x[i : i + 16], 0)


def _odd(x: ts.Tensor["m", ts.i32], y: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((m, 12)):
        y[i : i + 12] = x[i : i + 12] * 2


def _odd_sums(x: ts.Tensor["m", ts.i32], y: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((m, 12)):
        y[i : i + 12] = x[i : i + 12] - ts.tile.sum(x[i : i + 12], 0)


def _odd_places(x: ts.Tensor["m", ts.i32], y: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((m, 12)):
        y[i : i + 12] = x[i : i + 12] + ts.tile.arange(12) * 3


def _odd_rows(x: ts.Tensor["m", 20, ts.i32], y: ts.Tensor["m", 20, ts.i32]):
    for i in ts.tile.grid((m, 5)):
        rows = x[i : i + 5, :]
        total = rows * 0
        for k in ts.tile.range(0, 3):
            total = total + rows * 2 - ts.tile.cast(k, ts.i32)
        if x[0, 0] > -100:
            total = ts.tile.where(rows > 2, total, -total)
        y[i : i + 5, :] = total


def _deep(x: ts.Tensor["m", 3, 4, ts.i32], y: ts.Tensor["m", 4, 3, ts.i32]):
    for i in ts.tile.grid((m, 2)):
        y[i : i + 2, :, :] = ts.tile.transpose(x[i : i + 2, :, :], (0, 2, 1))


def _columns(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["n", ts.i32]):
    for j in ts.tile.grid((n, 1)):
        y[j] = ts.tile.sum(x[0:64, j], 0)


def _scattered(x: ts.Tensor["m", ts.i32], y: ts.Tensor["k", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        y[(ts.tile.arange(2) + 2 * (m - 1 - i))] = ts.tile.full((2,), 1, ts.i32) * x[i]


def _twice(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for i, j in ts.tile.grid((m, 1), (n, 4)):
        y[i, j : j + 4] = x[i, j : j + 4] * 2 + j


def _in_place(x: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        x[i, 0:16] = x[i, 0:16] * 2
        x[i, 0:16] = x[i, 0:16] - ts.tile.sum(x[i, 0:16], 0)


def _masked(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, 0:16]
        y[i, 0:16] = row
        if row > 2:
            y[i, 0:16] = x[i, 0:16] * 3


def _beyond(x: ts.Tensor["m", ts.i32], y: ts.Tensor["k", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        y[i] = x[i]


def _prefix(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    result = y.copy()
    result[: len(x)] = x
    return result


def _block_sums(x: np.ndarray) -> np.ndarray:
    return x + np.repeat(np.add.reduceat(x, np.arange(0, len(x), 16)), 16)[: len(x)]


def _ints(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-9, 10, shape).astype(np.int32)


@conformance(
    [
        Case(
            "numbers",
            _numbers,
            lambda rng: [_ints(rng, 2100), Output((2100,), ts.i32)],
            lambda x, _: x * 3 + np.arange(2100),
        ),
        Case("blocks", _blocks, lambda rng: [_ints(rng, 2100), Output((2100,), ts.i32)], lambda x, _: _block_sums(x)),
        Case("odd", _odd, lambda rng: [_ints(rng, 2100), Output((2100,), ts.i32)], lambda x, _: x * 2),
        Case(
            "odd-sums",
            _odd_sums,
            lambda rng: [_ints(rng, 2100), Output((2100,), ts.i32)],
            lambda x, _: x - np.repeat(x.reshape(-1, 12).sum(1), 12),
        ),
        Case(
            "odd-places",
            _odd_places,
            lambda rng: [_ints(rng, 2100), Output((2100,), ts.i32)],
            lambda x, _: x + np.arange(2100) % 12 * 3,
        ),
        Case(
            "odd-rows",
            _odd_rows,
            lambda rng: [_ints(rng, 99, 20), Output((99, 20), ts.i32)],
            lambda x, _: np.where(x > 2, x * 6 - 3, 3 - x * 6),
        ),
        Case(
            "deep",
            _deep,
            lambda rng: [_ints(rng, 35, 3, 4), Output((35, 4, 3), ts.i32)],
            lambda x, _: x.transpose(0, 2, 1),
        ),
        Case("columns", _columns, lambda rng: [_ints(rng, 33, 45), Output((45,), ts.i32)], lambda x, _: x.sum(0)),
        Case(
            "scattered",
            _scattered,
            lambda rng: [_ints(rng, 45), Updated(_ints(rng, 100))],
            lambda x, y: np.concatenate([np.repeat(x[::-1], 2), y[90:]]),
        ),
        Case(
            "twice",
            _twice,
            lambda rng: [_ints(rng, 7, 45), Output((7, 45), ts.i32)],
            lambda x, _: x * 2 + np.arange(45) // 4 * 4,
        ),
        Case(
            "in-place",
            _in_place,
            lambda rng: [Updated(_ints(rng, 45, 13))],
            lambda x: 2 * x - 2 * x.sum(1, keepdims=True),
        ),
        Case(
            "masked",
            _masked,
            lambda rng: [_ints(rng, 45, 13), Output((45, 13), ts.i32)],
            lambda x, _: np.where(x > 2, x * 3, x),
        ),
        Case("beyond", _beyond, lambda rng: [_ints(rng, 21), Updated(_ints(rng, 50))], _prefix),
    ]
)
def test_kernels(case, backend):
    check(case, backend)


# Boxes that start anywhere


def _embedded(x: ts.Tensor["r", 24, ts.f32], p: ts.Tensor["m", ts.i32], y: ts.Tensor["m", 24, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[p[i], :]


def _filled(x: ts.Tensor["r", 13, ts.f32], p: ts.Tensor["m", ts.i32], y: ts.Tensor["m", 13, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = ts.tile.load(x[p[i], :], fill=7.0) * 2 + i


def _sent(x: ts.Tensor["m", 24, ts.f32], p: ts.Tensor["m", ts.i32], y: ts.Tensor["r", 24, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[p[i], :] = x[i, :]


def _added(x: ts.Tensor["m", 13, ts.f32], p: ts.Tensor["m", ts.i32], y: ts.Tensor["r", 13, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[p[i], :] = x[i, :] + y[p[i], :] - ts.tile.sum(x[i, :])


def _elements(x: ts.Tensor["r", "k", ts.f32], p: ts.Tensor["m", ts.i32], y: ts.Tensor["m", ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i] = x[p[i], 5] + x[p[i] // 2, p[i] % 3]


def _pages(x: ts.Tensor["r", 4, 8, ts.f32], p: ts.Tensor["m", 3, ts.i32], y: ts.Tensor["m", 3, 4, 8, ts.f32]):
    for i, j in ts.tile.grid((m, 1), (3, 1)):
        y[i, j, :, :] = x[p[i, j], :, :]


def _chosen(x: ts.Tensor["r", 16, ts.f32], p: ts.Tensor["m", ts.i32], y: ts.Tensor["m", 16, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        row = x[p[i], :]
        if row > 0.0:
            y[m - 1 - i, :] = row


def _windows(x: ts.Tensor["r", ts.f32], p: ts.Tensor["m", ts.i32], y: ts.Tensor["m", 4, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[p[i] : p[i] + 4]


def _longer(x: ts.Tensor["m", 16, ts.f32], y: ts.Tensor["k", 16, ts.f32]):
    for i in ts.tile.grid((m, 1)):
        y[i, :] = x[i, :] * 2


ROWS, TAKEN = 70, 301


def _numbers_of(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-99, 100, shape).astype(np.float32)


def _anywhere(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return places of rows, some of them outside."""
    return rng.integers(-9, ROWS + 9, shape).astype(np.int32)


def _own(rng: np.random.Generator) -> np.ndarray:
    """Return places that differ, some of them outside."""
    return (rng.permutation(ROWS + 20)[: ROWS - 3] - 10).astype(np.int32)


def _taken(x: np.ndarray, p: np.ndarray, fill: float = 0) -> np.ndarray:
    """Return rows at places, and what stands for those outside."""
    rows = x[np.clip(p, 0, len(x) - 1)]
    outside = (p < 0) | (p >= len(x))
    return np.where(outside.reshape(*p.shape, *[1] * (x.ndim - 1)), np.float32(fill), rows)


def _put(x: np.ndarray, p: np.ndarray, y: np.ndarray, *, add: bool) -> np.ndarray:
    result, inside = y.copy(), (p >= 0) & (p < len(y))
    kept = x[inside]
    result[p[inside]] = kept + result[p[inside]] - kept.sum(1, keepdims=True) if add else kept
    return result


def _at(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    inside = (rows >= 0) & (rows < len(x))
    return np.where(inside, x[np.clip(rows, 0, len(x) - 1), columns], np.float32(0))


def _positive(x: np.ndarray, p: np.ndarray, y: np.ndarray) -> np.ndarray:
    rows = _taken(x, p)[::-1]
    return np.where(rows > 0, rows, y)


def _given(*shape: int) -> Callable[[np.random.Generator], list[Any]]:
    """Return rows, places and what the rows become."""
    return lambda rng: [_numbers_of(rng, ROWS, *shape), _anywhere(rng, TAKEN), Output((TAKEN, *shape), ts.f32)]


def _to_send(width: int) -> Callable[[np.random.Generator], list[Any]]:
    return lambda rng: [_numbers_of(rng, ROWS - 3, width), _own(rng), Updated(_numbers_of(rng, ROWS, width))]


@conformance(
    [
        Case("embedded", _embedded, _given(24), lambda x, p, _: _taken(x, p), EXACT),
        Case(
            "filled",
            _filled,
            _given(13),
            lambda x, p, _: _taken(x, p, 7) * 2 + np.arange(TAKEN, dtype=np.float32)[:, None],
            EXACT,
        ),
        Case("sent", _sent, _to_send(24), lambda x, p, y: _put(x, p, y, add=False), EXACT),
        Case("added", _added, _to_send(13), lambda x, p, y: _put(x, p, y, add=True), EXACT),
        Case(
            "elements",
            _elements,
            lambda rng: [_numbers_of(rng, ROWS, 9), _anywhere(rng, TAKEN), Output((TAKEN,), ts.f32)],
            lambda x, p, _: _at(x, p, np.full_like(p, 5)) + _at(x, p // 2, p % 3),
            EXACT,
        ),
        Case(
            "pages",
            _pages,
            lambda rng: [_numbers_of(rng, ROWS, 4, 8), _anywhere(rng, 67, 3), Output((67, 3, 4, 8), ts.f32)],
            lambda x, p, _: _taken(x, p),
            EXACT,
        ),
        Case(
            "chosen",
            _chosen,
            lambda rng: [_numbers_of(rng, ROWS, 16), _anywhere(rng, TAKEN), Updated(_numbers_of(rng, TAKEN, 16))],
            _positive,
            EXACT,
        ),
        Case(
            "windows",
            _windows,
            lambda rng: [
                _numbers_of(rng, ROWS),
                rng.integers(0, ROWS - 4, 45).astype(np.int32),
                Output((45, 4), ts.f32),
            ],
            lambda x, p, _: x[p[:, None] + np.arange(4)],
            EXACT,
        ),
        Case(
            "longer",
            _longer,
            lambda rng: [_numbers_of(rng, 45, 16), Updated(_numbers_of(rng, 99, 16))],
            lambda x, y: np.concatenate([x * 2, y[45:]]),
            EXACT,
        ),
    ]
)
def test_places(case, backend):
    check(case, backend)


# Any dimension may be the long one


def _sums_of_four(x: ts.Tensor["a", "b", "c", 6, ts.i32], y: ts.Tensor["a", "b", "c", 6, ts.i32]):
    for i, j, k in ts.tile.grid((a, 1), (b, 1), (c, 1)):
        y[i, j, k, :] = x[i, j, k, :] - ts.tile.sum(x[i, j, k, :])


@conformance(
    [
        Case(
            "x".join(map(str, sizes)),
            _sums_of_four,
            lambda rng, sizes=sizes: [_ints(rng, *sizes, 6), Output((*sizes, 6), ts.i32)],
            lambda x, _: x - x.sum(3, keepdims=True),
        )
        for sizes in ((70, 2, 1), (2, 70, 1), (1, 2, 70), (5, 4, 3), (40, 40, 2))
    ]
)
def test_long_dimensions(case, backend):
    check(case, backend)
