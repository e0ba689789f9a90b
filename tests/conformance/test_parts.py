"""Parts of tiles: slices with steps, elements, run-time starts, flips, rolls, splits, and elements at index tiles.

Each is read of a tile that is loaded, and of one that a loop has carried, of which no narrower load can be made.
"""

from typing import Any

import numpy as np

import tessera as ts
from tests.conformance.data import integers, normal
from tests.conformance.harness import Case, Output, check, conformance, dtype

DTYPES = (
    "bool",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
    "fp8_e4m3",
    "fp8_e5m2",
    "f16",
    "bf16",
    "f32",
    "f64",
)
INDEX_DTYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


@ts.function
def carried(x, steps):
    """Return a tile by way of a loop that runs `steps` times."""
    v = x
    for _ in ts.tile.range(0, steps, 1):
        v = ts.tile.where(v == v, x, v)
    return v


def chosen(x: np.ndarray, *items: Any) -> np.ndarray:
    """Return `x[items]` with zeros outside of `x`, for slices of which nothing counts from the end."""
    for axis, item in enumerate(items):
        places = np.arange(item.start, item.stop, item.step or 1)
        inside = (places >= 0) & (places < x.shape[axis])
        kept = np.take(x, np.where(inside, places, 0), axis)
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        x = np.where(inside.reshape(shape), kept, np.zeros((), x.dtype))
    return x


# Slices at compile time

BOXES: list[tuple[tuple[int, ...], tuple[slice, ...]]] = [
    ((8,), (slice(2, 6),)),
    ((8,), (slice(None, None, -1),)),
    ((300,), (slice(7, 299, 3),)),
    ((300,), (slice(-1, 12, -5),)),
    ((37, 12), (slice(3, 30), slice(None))),
    ((37, 12), (slice(None), slice(5, 6))),
    ((64, 32), (slice(32, 64), slice(16, 32))),
    ((64, 32), (slice(8, 40, 2), slice(None, None, -1))),
    ((16, 128), (slice(None, None, -3), slice(1, 126))),
    ((1, 33), (slice(None), slice(32, None, -4))),
    ((3, 5, 7), (slice(1, 3), slice(None, None, 2), slice(6, 1, -2))),
    ((4, 8, 16), (slice(None), slice(4, 8), slice(0, 8))),
    ((2, 3, 4, 5), (slice(1, 2), slice(None, None, -1), slice(1, 3), slice(None))),
]


def boxed(shape: tuple[int, ...], items: tuple[slice, ...], dt: Any) -> Any:
    at = tuple((item.start, item.stop, item.step) for item in items)
    result = np.empty(shape)[items].shape
    (a, b, c), (d, e, f), (g, h, i), (j, k, l) = (*at, *[(None, None, None)] * (4 - len(at)))  # noqa: E741
    rank = len(shape)

    def kernel(x: ts.Tensor[*shape, dt], y: ts.Tensor[*result, dt], z: ts.Tensor[*result, dt], steps: int):
        v = x[...]
        w = carried(v, steps)
        if rank == 1:
            y[...] = v[a:b:c]
            z[...] = w[a:b:c]
        elif rank == 2:
            y[...] = v[a:b:c, d:e:f]
            z[...] = w[a:b:c, d:e:f]
        elif rank == 3:
            y[...] = v[a:b:c, d:e:f, g:h:i]
            z[...] = w[a:b:c, d:e:f, g:h:i]
        else:
            y[...] = v[a:b:c, d:e:f, g:h:i, j:k:l]
            z[...] = w[a:b:c, d:e:f, g:h:i, j:k:l]

    return kernel


@conformance(
    [
        Case(
            f"box-{'x'.join(map(str, shape))}-{name}-{number}",
            boxed(shape, items, dtype(name)),
            lambda rng, shape=shape, items=items, name=name: (
                normal(rng, shape, dtype(name)),
                *[Output(np.empty(shape)[items].shape, dtype(name))] * 2,
                1,
            ),
            lambda x, y, z, n, items=items: (x[items], x[items]),
        )
        for number, (shape, items) in enumerate(BOXES)
        for name in dict.fromkeys(["f32", *(DTYPES[(number * 4 + k) % len(DTYPES)] for k in range(4))])
    ]
)
def test_slices(case, backend):
    check(case, backend)


# Elements and dropped dimensions


def elements(
    x: ts.Tensor[6, 20, ts.f32],
    y: ts.Tensor[12, ts.f32],
    row: ts.Tensor[20, ts.f32],
    column: ts.Tensor[6, ts.f32],
    lifted: ts.Tensor[1, 3, 1, ts.f32],
    at: ts.Tensor[4, ts.i32],
    steps: int,
    i: int,
    j: ts.i8,
):
    v = carried(x[:, :], steps)
    first = x[:, :]
    y[0] = v[2, 3]
    y[1] = v[-1, -20]
    y[2] = v[i, 3]
    y[3] = v[i, j]
    y[4] = v[i - 9, j]
    y[5] = v[at[0], at[1]]
    y[6] = v[at[2], at[3]]
    y[7] = first[5, 19] + first[i, 0]
    y[8] = v[..., 7][i]
    y[9] = (v * 2)[1][2]
    if v[0, 0] < v[1, 0]:
        y[10] = ts.tile.max(v[i])
    else:
        y[10] = ts.tile.max(v[i]) + 0.0
    y[11] = first.take(3)
    row[:] = v[i]
    column[:] = first[:, i + 4]
    lifted[:, :, :] = v[None, 1:4, 5, None]


def elements_reference(x, y, row, column, lifted, at, steps, i, j):
    y = [x[2, 3], x[-1, 0], x[i, 3], x[i, j], 0, x[at[0], at[1]], 0, x[5, 19] + x[i, 0]]
    y += [x[i, 7], x[1, 2] * 2, x[i].max(), x[0, 3]]
    return np.array(y), x[i], x[:, i + 4], x[None, 1:4, 5, None]


@conformance(
    [
        Case(
            "elements",
            elements,
            lambda rng: (
                normal(rng, (6, 20), ts.f32),
                *(Output(shape, ts.f32) for shape in ((12,), (20,), (6,), (1, 3, 1))),
                np.array([4, 19, 2, -1], np.int32),
                1,
                2,
                11,
            ),
            elements_reference,
        )
    ]
)
def test_elements(case, backend):
    check(case, backend)


def element_of(dt: Any) -> Any:
    def kernel(x: ts.Tensor[5, 9, dt], y: ts.Tensor[3, dt], steps: int, i: int):
        v = carried(x[:, :], steps)
        y[0] = v[3, 4]
        y[1] = v[i, i + 1]
        y[2] = v[i, i + 7]

    return kernel


@conformance(
    [
        Case(
            f"element-{name}",
            element_of(dtype(name)),
            lambda rng, name=name: (normal(rng, (5, 9), dtype(name)), Output((3,), dtype(name)), 1, 3),
            lambda x, y, n, i: np.array([x[3, 4], x[3, 4], np.zeros((), x.dtype)]),
            signed_zeros=True,
        )
        for name in DTYPES
    ]
)
def test_elements_of_each_dtype(case, backend):
    check(case, backend)


# Starts at run time


def sliding(dt: Any) -> Any:
    def kernel(
        x: ts.Tensor[11, 24, dt],
        starts: ts.Tensor["n", 2, ts.i64],
        boxes: ts.Tensor["n", 4, 8, dt],
        skips: ts.Tensor["n", 3, 5, dt],
        backwards: ts.Tensor["n", 11, 6, dt],
        rows: ts.Tensor["n", 24, dt],
        steps: int,
    ):
        for k in ts.tile.grid((n, 1)):
            v = carried(x[:, :], steps)
            i, j = starts[k, 0], starts[k, 1]
            boxes[k] = v[i : i + 4, j : j + 8]
            skips[k] = v[i : i + 9 : 3, j : j + 20 : 4]
            backwards[k] = v[:, j : j - 6 : -1]
            rows[k] = v[i]

    return kernel


def sliding_reference(x, starts, *_):
    far = 1 << 20
    near = [[max(min(int(place), far), -far) for place in pair] for pair in starts]
    return (
        np.stack([chosen(x, slice(i, i + 4), slice(j, j + 8)) for i, j in near]),
        np.stack([chosen(x, slice(i, i + 9, 3), slice(j, j + 20, 4)) for i, j in near]),
        np.stack([chosen(x, slice(0, 11), slice(j, j - 6, -1)) for _, j in near]),
        np.stack([chosen(x, slice(i, i + 1))[0] for i, _ in near]),
    )


STARTS = [(0, 0), (3, 5), (7, 16), (8, 17), (-1, -3), (10, 23), (11, 24), (-4, -8), (2**40, 1), (-(2**63), 2**63 - 1)]


@conformance(
    [
        Case(
            f"sliding-{name}",
            sliding(dtype(name)),
            lambda rng, name=name: (
                normal(rng, (11, 24), dtype(name)),
                np.array(STARTS, np.int64),
                *(Output((len(STARTS), *rest), dtype(name)) for rest in ((4, 8), (3, 5), (11, 6), (24,))),
                1,
            ),
            sliding_reference,
        )
        for name in DTYPES
    ]
)
def test_starts_at_run_time(case, backend):
    check(case, backend)


def walking(x: ts.Tensor[64, 16, ts.f32], total: ts.Tensor[8, 16, ts.f32], last: ts.Tensor[64, 4, ts.f32], steps: int):
    v = carried(x[:, :], steps)
    acc = ts.tile.zeros((8, 16), ts.f32)
    best = v[:, 0:4]
    for i in ts.tile.range(0, 64, 8):
        acc += v[i : i + 8]
    for j in ts.tile.range(1, 13):
        best = ts.tile.maximum(best, v[:, j : j + 4])
    total[:, :] = acc
    last[:, :] = best


@conformance(
    [
        Case(
            "walking",
            walking,
            lambda rng: (
                integers(rng, (64, 16), ts.i8).astype(np.float32),
                Output((8, 16), ts.f32),
                Output((64, 4), ts.f32),
                1,
            ),
            lambda x, *_: (
                x.reshape(8, 8, 16).sum(0),
                np.stack([x[:, j : j + 4] for j in range(13)]).max(0),
            ),
        )
    ]
)
def test_loops_over_parts(case, backend):
    check(case, backend)


# Flips, rolls, splits


def moved(shape: tuple[int, int], dt: Any) -> Any:
    m, n = shape

    def kernel(
        x: ts.Tensor[m, n, dt],
        flips: ts.Tensor[3, m, n, dt],
        rolls: ts.Tensor[6, m, n, dt],
        steps: int,
        by: int,
    ):
        v = x[:, :]
        w = carried(v, steps)
        flips[0] = w.flip()
        flips[1] = v.flip(0)
        flips[2] = ts.tile.flip(w, axis=(-1,))
        rolls[0] = w.roll(1, 0)
        rolls[1] = v.roll(-5, 1)
        rolls[2] = w.roll((by, 3), (0, 1))
        rolls[3] = ts.tile.roll(w, by, axis=-1)
        rolls[4] = w.roll(by)
        rolls[5] = w.roll(0, 0) if m == 1 else v.roll(m + 1, 0)

    return kernel


def moved_reference(x, flips, rolls, steps, by):
    rolls = [np.roll(x, 1, 0), np.roll(x, -5, 1), np.roll(x, (by, 3), (0, 1)), np.roll(x, by, -1), np.roll(x, by)]
    return np.stack([x[::-1, ::-1], x[::-1], x[:, ::-1]]), np.stack([*rolls, np.roll(x, 1, 0)])


@conformance(
    [
        Case(
            f"moved-{m}x{n}-{name}-by{by}",
            moved((m, n), dtype(name)),
            lambda rng, m=m, n=n, name=name, by=by: (
                normal(rng, (m, n), dtype(name)),
                Output((3, m, n), dtype(name)),
                Output((6, m, n), dtype(name)),
                1,
                by,
            ),
            moved_reference,
        )
        for number, (m, n, by) in enumerate([(16, 32, 5), (1, 40, -7), (12, 20, 2**40 + 3), (33, 5, -1), (64, 64, 0)])
        for name in [DTYPES[(number * 3 + k) % len(DTYPES)] for k in range(3)]
    ]
)
def test_flips_and_rolls(case, backend):
    check(case, backend)


def cut(
    x: ts.Tensor[12, 8, ts.f32],
    y: ts.Tensor[12, 8, ts.f32],
    z: ts.Tensor[8, 12, ts.f32],
    joined: ts.Tensor[12, 8, ts.f32],
    back: ts.Tensor[12, 8, ts.f32],
    steps: int,
):
    v = carried(x[:, :], steps)
    parts, columns = v.split(3), ts.tile.unstack(v, axis=1)
    for k in ts.tile.static_range(3):
        y[4 * k : 4 * k + 4, :] = parts[k] * (k + 1)
    for k in ts.tile.static_range(8):
        z[k] = columns[k] - k
    left, right = ts.tile.split(v, 2, axis=-1)
    joined[:, :] = ts.tile.concatenate((right, left), axis=1)
    a, b = ts.tile.unstack(ts.tile.join(v, v + 1), axis=-1)
    back[:, :] = b - a + ts.tile.concatenate((left, right), axis=1)[:, 4:8].sum(1)[:, None]


def cut_reference(x, *_):
    y = (x.reshape(3, 4, 8) * np.array([1, 2, 3])[:, None, None]).reshape(12, 8)
    z = x.T - np.arange(8)[:, None]
    back = np.ones((12, 8)) + x[:, 4:].sum(1)[:, None]
    return y, z, np.concatenate([x[:, 4:], x[:, :4]], 1), back


@conformance(
    [
        Case(
            "cut",
            cut,
            lambda rng: (
                integers(rng, (12, 8), ts.i8).astype(np.float32),
                *(Output(shape, ts.f32) for shape in ((12, 8), (8, 12), (12, 8), (12, 8))),
                1,
            ),
            cut_reference,
        )
    ]
)
def test_splits(case, backend):
    check(case, backend)


# Elements at index tiles


def picked(shape: tuple[int, int], count: int, dt: Any, at: Any) -> Any:
    m, n = shape

    def kernel(
        x: ts.Tensor[m, n, dt],
        across: ts.Tensor[m, count, at],
        down: ts.Tensor[count, n, at],
        line: ts.Tensor[count, at],
        a: ts.Tensor[m, count, dt],
        b: ts.Tensor[count, n, dt],
        c: ts.Tensor[count, n, dt],
        d: ts.Tensor[m, count, dt],
        e: ts.Tensor[count, dt],
        f: ts.Tensor[m, count, dt],
        steps: int,
    ):
        v = carried(x[:, :], steps)
        a[:, :] = ts.tile.take_along_axis(v, across[:, :], 1)
        b[:, :] = ts.tile.take_along_axis(v, down[:, :], axis=0, fill=1)
        c[:, :] = ts.tile.take(v, line[:], 0)
        d[:, :] = v.take(line[:], axis=-1, fill=1)
        e[:] = v.take(line[:])
        f[:, :] = ts.tile.take_along_axis(v, line[None, :], -1)

    return kernel


def along(x, index, axis, fill=0):
    index = index.astype(object)
    inside = ((index >= 0) & (index < x.shape[axis])).astype(bool)
    safe = np.where(inside, index, 0).astype(np.int64)
    return np.where(inside, np.take_along_axis(x, safe, axis), np.asarray(fill).astype(x.dtype))


def picked_reference(x, across, down, line, *_):
    lines, columns = (
        np.broadcast_to(line[:, None], (len(line), x.shape[1])),
        np.broadcast_to(line, (x.shape[0], len(line))),
    )
    return (
        along(x, across, 1),
        along(x, down, 0, 1),
        along(x, lines, 0),
        along(x, columns, 1, 1),
        along(x.reshape(-1), line, 0),
        along(x, columns, 1),
    )


def indices(rng: np.random.Generator, shape: tuple[int, ...], name: str, size: int) -> np.ndarray:
    """Return integers of which most are inside of a dimension."""
    wild = integers(rng, shape, dtype(name))
    near = rng.integers(0, min(size, 127), shape).astype(wild.dtype)
    return np.where(rng.random(shape) < 0.8, near, wild)


@conformance(
    [
        Case(
            f"picked-{m}x{n}-{count}-{name}-by-{at}",
            picked((m, n), count, dtype(name), dtype(at)),
            lambda rng, m=m, n=n, count=count, name=name, at=at: (
                normal(rng, (m, n), dtype(name)),
                indices(rng, (m, count), at, n),
                indices(rng, (count, n), at, m),
                indices(rng, (count,), at, min(m, n)),
                *(
                    Output(s, dtype(name))
                    for s in ((m, count), (count, n), (count, n), (m, count), (count,), (m, count))
                ),
                1,
            ),
            picked_reference,
        )
        for number, (m, n, count) in enumerate([(8, 16, 4), (5, 33, 12), (16, 300, 3), (1, 7, 9)])
        for name, at in [
            (DTYPES[(number * 4 + k) % len(DTYPES)], INDEX_DTYPES[(number * 3 + k) % len(INDEX_DTYPES)])
            for k in range(4)
        ]
    ]
)
def test_elements_at_index_tiles(case, backend):
    check(case, backend)
