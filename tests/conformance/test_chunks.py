"""Tiles that are computed chunk by chunk, in passes: all that may be done to long rows, and what has to stay whole."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

import tessera as ts
from tessera.numerics.tolerances import EXACT, Tolerance
from tests.conformance.harness import BACKENDS, Case, Output, Updated, check, conformance

M, N = 3, 77
EVERYWHERE = (*BACKENDS, "ptx-sm_90a")


@ts.function
def larger(a: Any, i: Any, b: Any, j: Any) -> Any:
    """The larger of two numbers with its place."""
    keep = (a > b) | ((a == b) & (i < j))
    return ts.tile.where(keep, a, b), ts.tile.where(keep, i, j)


@ts.function
def both(a: Any, b: Any) -> Any:
    """A sum whose combiner reads a constant."""
    return (a ^ b) + 2 * (a & b)


@ts.function
def follow(a: Any, x: Any, b: Any, y: Any) -> Any:
    """Two steps of h = a h + x as one; they do not commute."""
    return a * b, b * x + y


def _rows(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that stores a function of each row."""

    def kernel(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :]
            y[i, :] = body(row, i, n)

    return kernel


@ts.function
def alone(row: Any, i: Any, n: Any) -> Any:
    return row * 2 + ts.tile.cast(i, ts.i32)


@ts.function
def sums(row: Any, i: Any, n: Any) -> Any:
    return row - ts.tile.sum(row, 0)


@ts.function
def several(row: Any, i: Any, n: Any) -> Any:
    apart = row * n - ts.tile.sum(row, 0)
    most = ts.tile.max(apart * row, 0)
    return apart + most * ts.tile.min(row, 0) + ts.tile.sum(ts.tile.where(apart > most // 2, row, 1), 0)


@ts.function
def conditions(row: Any, i: Any, n: Any) -> Any:
    return ts.tile.where(ts.tile.any(row == 9, 0) & ~ts.tile.all(row < 100, 0), row, -row)


@ts.function
def best(row: Any, i: Any, n: Any) -> Any:
    value, place = ts.tile.reduce((row, ts.tile.arange(row.shape[0])), 0, larger)
    return row * 100 + value * 10 + place


@ts.function
def combined(row: Any, i: Any, n: Any) -> Any:
    return row + ts.tile.reduce(row, 0, both)


@ts.function
def running(row: Any, i: Any, n: Any) -> Any:
    return ts.tile.cumsum(row, 0) * 3 - ts.tile.max(ts.tile.cumsum(row, 0), 0)


@ts.function
def backwards(row: Any, i: Any, n: Any) -> Any:
    return ts.tile.cumsum(row, 0, reverse=True) - ts.tile.sum(row, 0)


@ts.function
def recurrence(row: Any, i: Any, n: Any) -> Any:
    _, h = ts.tile.associative_scan((row & 3, row), 0, follow)
    return h


@ts.function
def recurrence_back(row: Any, i: Any, n: Any) -> Any:
    _, h = ts.tile.associative_scan((row & 3, row), 0, follow, reverse=True)
    return h + ts.tile.reduce(row, 0, both)


@ts.function
def crossed(row: Any, i: Any, n: Any) -> Any:
    return ts.tile.cumsum(row, 0) + ts.tile.cumsum(row, 0, reverse=True)


@ts.function
def turned(row: Any, i: Any, n: Any) -> Any:
    return ts.tile.flip(row, 0) + row


def _follow(x: np.ndarray) -> np.ndarray:
    h, total = np.empty_like(x), np.zeros(len(x), x.dtype)
    for place in range(x.shape[1]):
        total = total * (x[:, place] & 3) + x[:, place]
        h[:, place] = total
    return h


def _several(x: np.ndarray) -> np.ndarray:
    apart = x * x.shape[1] - x.sum(1, keepdims=True)
    most = (apart * x).max(1, keepdims=True)
    return apart + most * x.min(1, keepdims=True) + np.where(apart > most // 2, x, 1).sum(1, keepdims=True)


MEANINGS: dict[Any, Callable[[np.ndarray], np.ndarray]] = {
    alone: lambda x: x * 2 + np.arange(len(x))[:, None],
    sums: lambda x: x - x.sum(1, keepdims=True),
    several: _several,
    conditions: lambda x: -x,
    best: lambda x: x * 100 + x.max(1, keepdims=True) * 10 + x.argmax(1)[:, None],
    combined: lambda x: x + x.sum(1, keepdims=True),
    running: lambda x: x.cumsum(1) * 3 - x.cumsum(1).max(1, keepdims=True),
    backwards: lambda x: x[:, ::-1].cumsum(1)[:, ::-1] - x.sum(1, keepdims=True),
    recurrence: _follow,
    recurrence_back: lambda x: _follow(x[:, ::-1])[:, ::-1] + x.sum(1, keepdims=True),
    crossed: lambda x: x.cumsum(1) + x[:, ::-1].cumsum(1)[:, ::-1],
    turned: lambda x: x[:, ::-1] + x,
}


def _ints(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-9, 10, shape).astype(np.int32)


@conformance(
    [
        Case(
            f"{body.__name__}-{size}-{chunk}",
            _rows(body),
            lambda rng, size=size: [_ints(rng, M, size), Output((M, size), ts.i32)],
            lambda x, _y, body=body: MEANINGS[body](x).astype(np.int32),
            EXACT,
            knobs={"chunk": chunk, "batch": 1},
            backends=EVERYWHERE if size == N else BACKENDS,
        )
        for body in MEANINGS
        for size, chunk in ((N, 16), (64, 32), (40, 32))[: 3 if body in (several, best, recurrence_back) else 1]
    ]
)
def test_rows(case, backend):
    check(case, backend)


@conformance(
    [
        Case(
            f"{body.__name__}-one-warp",
            _rows(body),
            lambda rng: [_ints(rng, 2, 1001), Output((2, 1001), ts.i32)],
            lambda x, _y, body=body: MEANINGS[body](x).astype(np.int32),
            EXACT,
            knobs={"num_warps": 1, "batch": 1},
            backends=("threads-sm_80", "ptx-sm_90a", "cuda"),
        )
        for body in (backwards, recurrence, recurrence_back)
    ]
)
def test_scans_of_elements_that_are_no_neighbours(case, backend):
    check(case, backend)


def _blocks(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32], z: ts.Tensor["m", ts.i32]):
    for i in ts.tile.grid((m, 2)):
        block = x[i : i + 2, :]
        total = ts.tile.sum(block, 1)
        z[i : i + 2] = total
        y[i : i + 2, :] = block * 2 - ts.tile.expand_dims(total, 1)


def _columns(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for j in ts.tile.grid((n, 2)):
        block = x[:, j : j + 2]
        y[:, j : j + 2] = block * ts.tile.sum(block, 0, keepdims=True) + ts.tile.cumsum(block, 0)


def _transposed(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["n", "m", ts.i32]):
    for i in ts.tile.grid((m, 2)):
        block = x[i : i + 2, :].T
        y[:, i : i + 2] = block - ts.tile.max(block, 0, keepdims=True)


def _in_place(x: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        x[i, :] = row - ts.tile.sum(row, 0)


def _in_place_early(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        x[i, :] = row * 2
        y[i, :] = row - ts.tile.sum(row, 0)


def _in_place_twice(x: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        x[i, :] = row * 2
        again = x[i, :]
        x[i, :] = again - ts.tile.sum(again + row, 0)


def _in_place_late(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        x[i, :] = row * 2
        again = x[i, :]
        y[i, :] = again - ts.tile.sum(again, 0) + row


def _shifted(x: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        x[i, 0 : n - 1] = x[i, 1:n] + 1


def _over_each_other(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", 80, ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        y[i, 3:80] = row - ts.tile.sum(row, 0)
        y[i, 0:77] = row


def _masked(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        y[i, :] = row
        if row > ts.tile.sum(row, 0):
            y[i, :] = x[i, :] * 3


def _outside(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, i - 5 : i + 100]
        y[i, i - 5 : i + 100] = row + ts.tile.sum(row + 1, 0)


def _indexed(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row, places = x[i, :], ts.tile.arange(n)
        y[i, n - 1 - places] = x[i, row & 63] - ts.tile.sum(row, 0)


def _between(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32], z: ts.Tensor["m", 3, ts.i32]):
    for i in ts.tile.grid((m, 1)):
        row = x[i, :]
        total = ts.tile.sum(row, 0)
        z[i, 0] = total
        most = ts.tile.max(row * (total + z[i, 2]), 0)
        z[i, 1] = most
        for k in ts.tile.range(0, 2):
            z[i, 0] = total * 2 + ts.tile.cast(k, ts.i32)
        y[i, :] = row - most


def _in_loop(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["m", "n", ts.i32]):
    for i in ts.tile.grid((m, 2)):
        for r in ts.tile.range(i, ts.tile.minimum(i + 2, m)):
            row = x[r, :]
            y[r, :] = row - ts.tile.sum(row, 0)


def _carried(x: ts.Tensor["m", "n", ts.i32], y: ts.Tensor["n", ts.i32]):
    for _ in ts.tile.grid((1, 1)):
        total = x[0, :]
        for r in ts.tile.range(1, m):
            total = total + x[r, :]
        y[:] = total - ts.tile.sum(total, 0)


def _between_meaning(x: np.ndarray, _y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = x.sum(1)
    most = (x * (total + z[:, 2])[:, None]).max(1)
    return (x - most[:, None]).astype(np.int32), np.stack([total * 2 + 1, most, z[:, 2]], 1).astype(np.int32)


def _over(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    y = y.copy()
    y[:, 3:] = x - x.sum(1, keepdims=True)
    y[:, :77] = x
    return y


def _case(name: str, kernel: Any, arguments: Callable[..., Any], meaning: Callable[..., Any], chunk: int = 16) -> Case:
    return Case(name, kernel, arguments, meaning, EXACT, knobs={"chunk": chunk, "batch": 1})


def _pair(rng: np.random.Generator) -> list[Any]:
    return [_ints(rng, M, N), Output((M, N), ts.i32)]


@conformance(
    [
        _case(
            "blocks",
            _blocks,
            lambda rng: [*_pair(rng), Output((M,), ts.i32)],
            lambda x, _y, _z: (x * 2 - x.sum(1, keepdims=True), x.sum(1)),
            32,
        ),
        _case(
            "columns",
            _columns,
            lambda rng: [_ints(rng, N, M), Output((N, M), ts.i32)],
            lambda x, _: x * x.sum(0) + x.cumsum(0),
        ),
        _case(
            "transposed",
            _transposed,
            lambda rng: [_ints(rng, M, N), Output((N, M), ts.i32)],
            lambda x, _: (x - x.max(1, keepdims=True)).T,
        ),
        _case("in-place", _in_place, lambda rng: [Updated(_ints(rng, M, N))], lambda x: x - x.sum(1, keepdims=True)),
        _case(
            "in-place-early",
            _in_place_early,
            lambda rng: [Updated(_ints(rng, M, N)), Output((M, N), ts.i32)],
            lambda x, _: (x * 2, x - x.sum(1, keepdims=True)),
        ),
        _case(
            "in-place-twice",
            _in_place_twice,
            lambda rng: [Updated(_ints(rng, M, N))],
            lambda x: 2 * x - 3 * x.sum(1, keepdims=True),
        ),
        _case(
            "in-place-late",
            _in_place_late,
            lambda rng: [Updated(_ints(rng, M, N)), Output((M, N), ts.i32)],
            lambda x, _: (x * 2, x * 3 - 2 * x.sum(1, keepdims=True)),
        ),
        _case(
            "shifted",
            _shifted,
            lambda rng: [Updated(_ints(rng, M, N))],
            lambda x: np.concatenate([x[:, 1:] + 1, x[:, -1:]], 1),
        ),
        _case("over-each-other", _over_each_other, lambda rng: [_ints(rng, M, N), Updated(_ints(rng, M, 80))], _over),
        _case("masked", _masked, _pair, lambda x, _: np.where(x > x.sum(1, keepdims=True), x * 3, x)),
        _case("outside", _outside, _pair, lambda x, _: x + x.sum(1, keepdims=True) + 105),
        _case(
            "indexed",
            _indexed,
            _pair,
            lambda x, _: (np.take_along_axis(x, x & 63, 1) - x.sum(1, keepdims=True))[:, ::-1],
        ),
        _case("between", _between, lambda rng: [*_pair(rng), Updated(_ints(rng, M, 3))], _between_meaning),
        _case("in-loop", _in_loop, _pair, lambda x, _: x - x.sum(1, keepdims=True)),
        _case(
            "carried",
            _carried,
            lambda rng: [_ints(rng, M, N), Output((N,), ts.i32)],
            lambda x, _: x.sum(0) - x.sum(),
        ),
    ]
)
def test_kernels(case, backend):
    check(case, backend)


def _everything(x: ts.Tensor["m", "n", "k", ts.i32], y: ts.Tensor["m", 6, ts.i32]):
    for i in ts.tile.grid((m, 1)):
        cube = x[i : i + 1, :, :]
        flat = ts.tile.reshape(cube, (-1,))
        y[i, 0] = ts.tile.sum(cube)
        y[i, 1] = ts.tile.max(cube * 3 - 1)
        y[i, 2] = ts.tile.argmin(cube)
        y[i, 3] = ts.tile.reduce(cube, None, both)
        value, place = ts.tile.reduce((flat * 2, ts.tile.arange(n * k)), 0, larger)
        y[i, 4] = value * 1000 + place
        y[i, 5] = ts.tile.sum(ts.tile.where(flat > ts.tile.min(flat, 0), flat, 5), 0)


def _everything_meaning(x: np.ndarray, _y: np.ndarray) -> np.ndarray:
    flat = x.reshape(len(x), -1)
    columns = [
        flat.sum(1),
        flat.max(1) * 3 - 1,
        flat.argmin(1),
        flat.sum(1),
        flat.max(1) * 2000 + flat.argmax(1),
        np.where(flat > flat.min(1, keepdims=True), flat, 5).sum(1),
    ]
    return np.stack(columns, 1).astype(np.int32)


@conformance(
    [
        Case(
            f"{rows}x{columns}-chunk-{chunk}",
            _everything,
            lambda rng, rows=rows, columns=columns: [_ints(rng, 2, rows, columns), Output((2, 6), ts.i32)],
            _everything_meaning,
            EXACT,
            knobs={"chunk": chunk, "batch": 1},
        )
        for rows, columns, chunk in ((3, 77, 64), (2, 64, 32), (40, 4, 32), (5, 16, 16))
    ]
)
def test_all_elements_of_several_rows(case, backend):
    check(case, backend)


ORDERS = [order for order in permutations(range(3)) if order != (0, 1, 2)]
CUBE = (2, 4, 4, 4)


def _cube(first: Any) -> Any:
    """Annotate a tensor of cubes."""
    return ts.Tensor[first, 4, 4, 4, ts.i32]


def read_before(order: tuple[int, ...]) -> Callable[..., Any]:
    """Return a kernel that stores each cube over itself, its dimensions in another order."""

    def kernel(x: _cube("m")):
        for i in ts.tile.grid((m, 1)):
            x[i, :, :, :] = ts.tile.transpose(x[i, :, :, :], order) * 3

    return kernel


def read_behind(order: tuple[int, ...]) -> Callable[..., Any]:
    """Return a kernel that loads what it stored, and adds it in another order."""

    def kernel(x: _cube("m"), y: _cube("m"), z: _cube("m")):
        for i in ts.tile.grid((m, 1)):
            cube = y[i, :, :, :]
            x[i, :, :, :] = cube
            z[i, :, :, :] = x[i, :, :, :] * 3 + ts.tile.transpose(cube, order)

    return kernel


def stored_twice(order: tuple[int, ...]) -> Callable[..., Any]:
    """Return a kernel that stores each cube, and over it the same one in another order."""

    def kernel(x: _cube("m"), y: _cube("m")):
        for i in ts.tile.grid((m, 1)):
            cube = y[i, :, :, :]
            x[i, :, :, :] = cube
            x[i, :, :, :] = ts.tile.transpose(cube, order) * 3

    return kernel


def _turned(x: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    return x.transpose(0, *(place + 1 for place in order))


TURNING: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {
    read_before: (lambda rng: [Updated(_ints(rng, *CUBE))], lambda order, x: _turned(x, order) * 3),
    read_behind: (
        lambda rng: [Output(CUBE, ts.i32), _ints(rng, *CUBE), Output(CUBE, ts.i32)],
        lambda order, _x, y, _z: (y, y * 3 + _turned(y, order)),
    ),
    stored_twice: (
        lambda rng: [Output(CUBE, ts.i32), _ints(rng, *CUBE)],
        lambda order, _x, y: _turned(y, order) * 3,
    ),
}
"""Two accesses of one box, of which one stores, of tiles whose dimensions have changed places in between."""


@conformance(
    [
        Case(
            f"{kernel.__name__}-{''.join(map(str, order))}",
            kernel(order),
            arguments,
            lambda *arrays, order=order, meaning=meaning: meaning(order, *arrays),
            EXACT,
            knobs={"chunk": 16, "batch": 1},
            backends=EVERYWHERE,
        )
        for kernel, (arguments, meaning) in TURNING.items()
        for order in ORDERS
    ]
)
def test_boxes_whose_dimensions_change_places(case, backend):
    check(case, backend)


def norm_of(dt: Any) -> Callable[..., Any]:
    """Return a kernel of LayerNorm with weights."""

    def norm(x: ts.Tensor["m", "n", dt], w: ts.Tensor["n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :].to(ts.f32)
            apart = row - ts.tile.sum(row) / n
            scale = ts.tile.rsqrt(ts.tile.sum(apart * apart) / n + 1e-6)
            y[i, :] = (apart * scale * w[:].to(ts.f32)).to(dt)

    return norm


def softmax_of(dt: Any) -> Callable[..., Any]:
    """Return a kernel of softmax."""

    def softmax(x: ts.Tensor["m", "n", dt], y: ts.Tensor["m", "n", dt]):
        for i in ts.tile.grid((m, 1)):
            row = x[i, :].to(ts.f32)
            powers = ts.tile.exp(row - ts.tile.max(row))
            y[i, :] = (powers / ts.tile.sum(powers)).to(dt)

    return softmax


def _norm_meaning(x: np.ndarray, w: np.ndarray, _y: np.ndarray) -> np.ndarray:
    apart = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    return apart / np.sqrt((apart * apart).mean(1, keepdims=True) + 1e-6) * w.astype(np.float64)


def _softmax_meaning(x: np.ndarray, _y: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _floats(rng: np.random.Generator, dt: Any, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(dt.numpy())


@conformance(
    [
        case
        for dt, size in ((ts.f32, 77), (ts.f16, 96), (ts.bf16, 91), (ts.f64, 66))
        for case in (
            Case(
                f"norm-{dt.name}",
                norm_of(dt),
                lambda rng, dt=dt, size=size: [
                    _floats(rng, dt, M, size),
                    _floats(rng, dt, size),
                    Output((M, size), dt),
                ],
                _norm_meaning,
                Tolerance(relative=2.0**-dt.mantissa + 1e-5, absolute=1e-5),
                knobs={"chunk": 32, "batch": 1},
                backends=EVERYWHERE,
            ),
            Case(
                f"softmax-{dt.name}",
                softmax_of(dt),
                lambda rng, dt=dt, size=size: [_floats(rng, dt, M, size), Output((M, size), dt)],
                _softmax_meaning,
                Tolerance(relative=2.0**-dt.mantissa + 1e-5, absolute=1e-6),
                knobs={"chunk": 16, "batch": 1},
            ),
        )
    ]
)
def test_floats(case, backend):
    check(case, backend)
